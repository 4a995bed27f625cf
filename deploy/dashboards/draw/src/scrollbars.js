// The package is CommonJS; Grafana's modules import its default export, which a bundler takes for the whole module.
import * as scrollbars from '../node_modules/react-custom-scrollbars-2/lib/index.js';
export const Scrollbars = scrollbars.Scrollbars;
export default scrollbars.Scrollbars;
