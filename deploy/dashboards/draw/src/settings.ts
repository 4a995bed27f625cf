// What the page is asked for, from its address, and what it reports to the program that opened it.
import { createTheme } from '@grafana/data';

const parameters = new URLSearchParams(window.location.search);

function needed(name: string): string {
  const value = parameters.get(name);
  if (value === null) throw new Error(`the address has no parameter ${name}`);
  return value;
}

export const settings = {
  prometheus: needed('prometheus'),
  dashboard: needed('dashboard'),
  from: Number(needed('from')),
  to: Number(needed('to')),
  scrapeSeconds: Number(needed('scrape')),
  /** Chosen values of variables by name. */
  variables: Object.fromEntries(
    [...parameters].filter(([key]) => key.startsWith('var-')).map(([key, value]) => [key.slice(4), value])
  ) as Record<string, string>,
};

export const theme = createTheme({ colors: { mode: parameters.get('theme') === 'light' ? 'light' : 'dark' } });

export interface PanelReport {
  title: string;
  type: string;
  state: string;
  frames: number;
  error?: string;
}

export interface QueryReport {
  refId: string;
  expr: string;
  series: number;
  error?: string;
}

export interface Report {
  panels: Record<string, PanelReport>;
  queries: QueryReport[];
  /** Annotation queries that have not been answered yet. */
  pending: number;
  annotations: number;
  fatal?: string;
  /** Ids of the panels that there must be. */
  expected?: number[];
}

export const report: Report = { panels: {}, queries: [], pending: 0, annotations: 0 };
(window as any).__report = report;
