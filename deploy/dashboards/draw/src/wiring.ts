// What Grafana's own start-up code hands to its libraries before the first panel.
import * as D from '@grafana/data';
import * as R from '@grafana/runtime';
import { initPluginTranslations } from '@grafana/i18n';
import { catchError, from, map, of, startWith, type Observable } from 'rxjs';
import { dataSource, instance, interpolate } from './prometheus';
import { plugins } from './panels';
import { theme } from './settings';

const nothing = (() => null) as any;

function option(id: string, process: any): any {
  return {
    id, path: id, name: id, description: '', editor: nothing, override: nothing, process, settings: {},
    shouldApply: () => true, getItemsCount: undefined,
  };
}

function registries(): void {
  D.standardFieldConfigEditorRegistry.setInit(() => [
    option('unit', D.unitOverrideProcessor),
    option('min', D.numberOverrideProcessor),
    option('max', D.numberOverrideProcessor),
    option('decimals', D.numberOverrideProcessor),
    option('displayName', D.displayNameOverrideProcessor),
    option('noValue', D.stringOverrideProcessor),
    option('color', D.identityOverrideProcessor),
    option('thresholds', D.thresholdsOverrideProcessor),
    option('mappings', D.valueMappingsOverrideProcessor),
    option('links', D.dataLinksOverrideProcessor),
    option('filterable', D.booleanOverrideProcessor),
    option('fieldMinMax', D.booleanOverrideProcessor),
  ]);
  // Some are exported under two names, and the registry takes each id once.
  const transformers = [...new Map(Object.values(D.standardTransformers).map((one: any) => [one.id, one])).values()];
  D.standardTransformersRegistry.setInit(() =>
    transformers.map((one: any) => ({ id: one.id, name: one.name, transformation: () => Promise.resolve(one), editor: nothing })) as any
  );
}

function runRequest(source: any, request: any): Observable<any> {
  const base = { timeRange: request.range, request, series: [] as D.DataFrame[] };
  const failed = (error: any) => ({ ...base, state: D.LoadingState.Error, error, errors: [error] });
  const answered = (answer: any) =>
    answer.error
      ? { ...failed(answer.error), series: answer.data ?? [] }
      : { ...base, state: D.LoadingState.Done, series: answer.data ?? [] };
  const answer = source.query(request);
  return (answer.subscribe ? answer : from(answer)).pipe(
    map(answered),
    catchError((error) => of(failed({ message: String(error?.message ?? error) }))),
    startWith({ ...base, state: D.LoadingState.Loading })
  );
}

export async function wire(): Promise<void> {
  registries();
  Object.assign(R.config as any, { theme2: theme, featureToggles: {} });
  R.setAppEvents(new D.EventBusSrv() as any);
  R.setEchoSrv({ addEvent() {}, addBackend() {}, flush() {} } as any);
  R.setRunRequest(runRequest as any);
  R.setDataSourceSrv({
    get: async () => dataSource,
    getList: () => [instance],
    getInstanceSettings: () => instance,
    reload() {},
    registerRuntimeDataSource() {},
  } as any);
  R.setTemplateSrv({
    replace: (text: any, scoped: any, format: any) => interpolate(text ?? '', scoped, format),
    getVariables: () => [],
    containsTemplate: (text: string) => /\$/.test(text ?? ''),
    updateTimeRange() {},
  } as any);
  R.setPluginImportUtils({
    importPanelPlugin: async (id: string) => {
      if (!plugins[id]) throw new Error(`a panel type that is not drawn here: ${id}`);
      return plugins[id];
    },
    getPanelPluginFromCache: (id: string) => plugins[id],
  } as any);
  await initPluginTranslations('inflight', []);
}
