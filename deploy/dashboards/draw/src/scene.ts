// A dashboard's JSON as a scene, which is what Grafana runs dashboards on.
import * as S from '@grafana/scenes';
import { setAnnotations } from './annotations';
import { instance } from './prometheus';
import { report, settings } from './settings';

function panel(json: any): S.VizPanel {
  const runner = new S.SceneQueryRunner({
    datasource: json.datasource,
    queries: json.targets ?? [],
    maxDataPoints: json.maxDataPoints,
    minInterval: json.interval,
  });
  runner.subscribeToState(({ data }) => {
    if (!data) return;
    const error = data.error?.message ?? data.errors?.[0]?.message;
    report.panels[json.id] = { title: json.title, type: json.type, state: data.state, frames: data.series.length, error };
  });
  return new S.VizPanel({
    key: `panel-${json.id}`,
    title: json.title,
    description: json.description,
    pluginId: json.type,
    options: json.options ?? {},
    fieldConfig: json.fieldConfig ?? { defaults: {}, overrides: [] },
    displayMode: json.transparent ? 'transparent' : 'default',
    $data: new S.SceneDataTransformer({ $data: runner, transformations: json.transformations ?? [] }),
  });
}

function item(json: any): S.SceneGridItem {
  const { x, y, w, h } = json.gridPos;
  return new S.SceneGridItem({
    key: `grid-item-${json.id}`, x, y, width: w, height: h, body: panel(json), isDraggable: false, isResizable: false,
  });
}

/** Rows are shown open. */
function row(json: any): S.SceneGridRow {
  return new S.SceneGridRow({
    key: `row-${json.id}`,
    title: json.title,
    isCollapsed: false,
    isCollapsible: true,
    y: json.gridPos.y,
    children: (json.panels ?? []).map(item),
  });
}

function variable(json: any): S.SceneVariable {
  const common = { name: json.name, label: json.label, hide: json.hide };
  const chosen = settings.variables[json.name];
  if (json.type === 'datasource') {
    return new S.DataSourceVariable({ ...common, pluginId: json.query, value: instance.uid, text: instance.name });
  }
  if (json.type === 'query') {
    return new S.QueryVariable({
      ...common,
      datasource: json.datasource,
      query: json.query,
      regex: json.regex ?? '',
      isMulti: json.multi,
      includeAll: json.includeAll,
      allValue: json.allValue,
      value: chosen ?? json.current?.value ?? '',
      text: chosen ?? json.current?.text ?? '',
      refresh: json.refresh,
      sort: json.sort,
    });
  }
  throw new Error(`variable ${json.name}: a type that is not drawn here: ${json.type}`);
}

function children(panels: any[]): any[] {
  const list: any[] = [];
  let open: S.SceneGridRow | undefined;
  for (const json of panels) {
    if (json.type === 'row') list.push((open = row(json)));
    else if (open) open.setState({ children: [...open.state.children, item(json)] });
    else list.push(item(json));
  }
  return list;
}

export function scene(json: any): S.EmbeddedScene {
  setAnnotations(json.annotations?.list ?? []);
  report.expected = json.panels.flatMap((one: any) => [one, ...(one.panels ?? [])]).filter((one: any) => one.type !== 'row').map((one: any) => one.id);
  const [from, to] = [settings.from, settings.to].map((time) => new Date(time).toISOString());
  return new S.EmbeddedScene({
    $timeRange: new S.SceneTimeRange({ from, to, timeZone: 'utc' }),
    $variables: new S.SceneVariableSet({ variables: (json.templating?.list ?? []).map(variable) }),
    controls: [new S.VariableValueSelectors({}), new S.SceneControlsSpacer(), new S.SceneTimePicker({})],
    body: new S.SceneGridLayout({ children: children(json.panels), isDraggable: false, isResizable: false }),
  });
}
