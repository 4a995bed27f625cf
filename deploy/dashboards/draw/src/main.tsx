// The page: one dashboard, drawn once. `window.__report` says how each panel and query fared.
import { createRoot } from 'react-dom/client';
import { ThemeContext } from '@grafana/data';
import { LocationServiceProvider, locationService } from '@grafana/runtime';
import { GlobalStyles } from '@grafana/ui';
import { report, settings, theme } from './settings';
import { scene } from './scene';
import { wire } from './wiring';

async function main(): Promise<void> {
  await wire();
  const dashboard = await (await fetch(`/dashboards/${settings.dashboard}.json`)).json();
  const drawn = scene(dashboard);
  document.body.style.background = theme.colors.background.canvas;
  const style = { padding: 16, minHeight: '100vh', display: 'flex', flexDirection: 'column', color: theme.colors.text.primary } as const;
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <LocationServiceProvider service={locationService}>
        <div style={style}>
          <h1 style={{ fontSize: 20, marginBottom: 12 }}>{dashboard.title}</h1>
          <drawn.Component model={drawn} />
        </div>
      </LocationServiceProvider>
    </ThemeContext.Provider>
  );
}

main().catch((error) => {
  report.fatal = String(error?.stack ?? error);
});
