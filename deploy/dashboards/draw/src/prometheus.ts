// A data source in place of Grafana's Prometheus plugin, which is not in npm: straight to the HTTP API.
import * as D from '@grafana/data';
import { sceneGraph } from '@grafana/scenes';
import { report, settings, type QueryReport } from './settings';

const UID = 'prometheus';

/** A value of a variable in PromQL: several as a regular expression. */
function text(value: any, variable: any): string {
  const escaped = (one: string) => one.replace(/[\\^$*+?.()|[\]{}]/g, '\\\\$&');
  if (!variable?.multi && !variable?.includeAll) return String(value).replace(/\\/g, '\\\\').replace(/"/g, '\\"');
  if (!Array.isArray(value)) return escaped(String(value));
  return value.length === 1 ? escaped(value[0]) : `(${value.map(escaped).join('|')})`;
}

export function interpolate(template: string, scoped: any, format: any = text): string {
  const scene = scoped?.__sceneObject?.value;
  return scene ? sceneGraph.interpolate(scene.valueOf(), template, scoped, format) : template;
}

export async function ask(path: string, parameters: Record<string, any>): Promise<any> {
  const response = await fetch(`${settings.prometheus}/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const answer = await response.json();
  if (answer.status !== 'success') throw new Error(answer.error);
  return answer.data;
}

const labelled = (template: string, labels: Record<string, string>) =>
  template.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => labels[label] ?? '');

/** The name Grafana gives a series without a legend of its own. */
function signature({ __name__, ...labels }: Record<string, string>): string {
  return `${__name__ ?? ''}{${Object.entries(labels).map(([key, value]) => `${key}="${value}"`).join(', ')}}`;
}

const number = (value: string | null) => {
  if (value === null) return null;
  return value === '+Inf' ? Infinity : value === '-Inf' ? -Infinity : Number(value);
};

function table(refId: string, alone: boolean, result: any[]): D.DataFrame {
  const labels = [...new Set(result.flatMap((one) => Object.keys(one.metric)))];
  const last = (one: any) => one.value ?? one.values[one.values.length - 1];
  return D.toDataFrame({
    refId,
    fields: [
      { name: 'Time', type: D.FieldType.time, values: result.map((one) => last(one)[0] * 1000) },
      ...labels.map((name) => ({ name, type: D.FieldType.string, values: result.map((one) => one.metric[name] ?? '') })),
      { name: alone ? 'Value' : `Value #${refId}`, type: D.FieldType.number, values: result.map((one) => number(last(one)[1])) },
    ],
  });
}

function series(refId: string, step: number, legend: string | undefined, one: any): D.DataFrame {
  // Prometheus leaves missing points out, and the plot would draw a line across them: a null stands in each gap.
  const points: Array<[number, string | null]> = one.value ? [one.value] : [];
  for (const point of one.values ?? []) {
    const previous = points[points.length - 1];
    if (previous && point[0] - previous[0] > step * 1.5) points.push([previous[0] + step, null]);
    points.push(point);
  }
  const { __name__, ...labels } = one.metric;
  const displayNameFromDS = legend && legend !== '__auto' ? labelled(legend, one.metric) : signature(one.metric);
  return D.toDataFrame({
    refId,
    meta: { type: D.DataFrameType.TimeSeriesMulti },
    fields: [
      { name: 'Time', type: D.FieldType.time, values: points.map((p) => p[0] * 1000), config: { interval: step * 1000 } },
      { name: 'Value', type: D.FieldType.number, labels, values: points.map((p) => number(p[1])), config: { displayNameFromDS } },
    ],
  });
}

class PrometheusDataSource extends D.DataSourceApi<any, any> {
  interval = `${settings.scrapeSeconds * 1000}ms`;

  async query(request: any): Promise<any> {
    const data: D.DataFrame[] = [];
    let failure: { message: string; refId: string } | undefined;
    const targets = request.targets.filter((target: any) => !target.hide);
    for (const target of targets) {
      const step = Math.max(request.intervalMs / 1000, settings.scrapeSeconds);
      const window = Math.max(step + settings.scrapeSeconds, 4 * settings.scrapeSeconds);
      const start = request.range.from.valueOf() / 1000;
      const end = request.range.to.valueOf() / 1000;
      const scoped = {
        ...request.scopedVars,
        __range: { value: `${Math.round(end - start)}s`, text: '' },
        __range_s: { value: `${Math.round(end - start)}`, text: '' },
        __range_ms: { value: `${(end - start) * 1000}`, text: '' },
        __interval: { value: `${step * 1000}ms`, text: '' },
        __rate_interval: { value: `${window * 1000}ms`, text: '' },
      };
      const expr = interpolate(target.expr, scoped);
      const said: QueryReport = { refId: target.refId, expr, series: 0 };
      report.queries.push(said);
      try {
        const answer = target.instant
          ? await ask('query', { query: expr, time: end })
          : await ask('query_range', { query: expr, start, end, step });
        const result = answer.resultType === 'scalar' ? [{ metric: {}, value: answer.result }] : answer.result;
        said.series = result.length;
        if (!result.length) continue;
        if (target.format === 'table') data.push(table(target.refId, targets.length === 1, result));
        else data.push(...result.map((one: any) => series(target.refId, step, interpolate(target.legendFormat ?? '', scoped), one)));
      } catch (error: any) {
        said.error = error.message;
        failure = { message: error.message, refId: target.refId };
      }
    }
    return { data, error: failure };
  }

  async metricFindQuery(query: any, options: any): Promise<any> {
    const asked = interpolate(typeof query === 'string' ? query : query.query, options?.scopedVars);
    const found = asked.match(/^label_values\((?:(.+),\s*)?([a-zA-Z_]\w*)\)$/);
    if (!found) throw new Error(`a variable's query that is no label_values(...): ${asked}`);
    const range = { start: settings.from / 1000, end: settings.to / 1000 };
    const values = await ask(`label/${found[2]}/values`, found[1] ? { 'match[]': found[1], ...range } : range);
    return values.map((value: string) => ({ text: value, value }));
  }

  async testDatasource(): Promise<any> {
    return { status: 'success', message: '' };
  }

  getRef() {
    return { type: 'prometheus', uid: UID };
  }
}

const meta = { id: 'prometheus', name: 'Prometheus', type: 'datasource', metrics: true, info: { logos: { small: '', large: '' } }, module: '', baseUrl: '' };

export const instance: any = {
  id: 1, uid: UID, name: 'Prometheus', type: 'prometheus', isDefault: true, access: 'direct', readOnly: true, jsonData: {}, meta,
};
export const dataSource = new PrometheusDataSource(instance);
