// Bundles the page into build/: script, style, icons and fonts.
import { build } from 'esbuild';
import { cpSync, mkdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const modules = join(here, 'node_modules');
const out = join(here, 'build');

rmSync(out, { recursive: true, force: true });
mkdirSync(join(out, 'public/fonts/inter'), { recursive: true });
// Where Grafana's components look for them.
cpSync(join(modules, '@grafana/ui/dist/public/img'), join(out, 'public/build/img'), { recursive: true });
for (const [weight, name] of [[400, 'Regular'], [500, 'Medium']]) {
  const font = join(modules, `@fontsource/inter/files/inter-latin-${weight}-normal.woff2`);
  cpSync(font, join(out, `public/fonts/inter/Inter-${name}.woff2`));
}
cpSync(join(here, 'index.html'), join(out, 'index.html'));
await build({
  entryPoints: [join(here, 'src/main.tsx')],
  outfile: join(out, 'main.js'),
  bundle: true,
  minify: true,
  format: 'iife',
  platform: 'browser',
  jsx: 'automatic',
  define: { 'process.env.NODE_ENV': '"production"' },
  alias: {
    'react-custom-scrollbars-2': join(here, 'src/scrollbars.js'),
    'react-router-dom-v5-compat': 'react-router-dom',
  },
  loader: { '.svg': 'text', '.woff2': 'file', '.ttf': 'file', '.png': 'file' },
  logLevel: 'error',
});
