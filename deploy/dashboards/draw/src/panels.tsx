// The panel types: Grafana's are part of its server and not in npm, so these put its components together again.
import { useMemo } from 'react';
import * as D from '@grafana/data';
import * as U from '@grafana/ui';
import { Annotations } from './annotations';
import { theme } from './settings';

/** Defaults of a panel type's own field options (`fieldConfig.defaults.custom`). */
const defaults = (values: Record<string, any>) => (builder: any) => {
  for (const [id, defaultValue] of Object.entries(values)) {
    builder.addCustomEditor({
      id, path: id, name: id, editor: () => null, override: () => null, process: D.identityOverrideProcessor,
      shouldApply: () => true, defaultValue,
    });
  }
};

const TIME_SERIES = {
  drawStyle: 'line', lineInterpolation: 'linear', barAlignment: 0, barWidthFactor: 0.6, lineWidth: 1, fillOpacity: 0,
  gradientMode: 'none', lineStyle: { fill: 'solid' }, spanNulls: false, insertNulls: false, showPoints: 'auto',
  pointSize: 5, stacking: { group: 'A', mode: 'none' }, axisPlacement: 'auto', axisLabel: '', axisColorMode: 'text',
  axisBorderShow: false, axisSoftMax: undefined, scaleDistribution: { type: 'linear' }, axisCenteredZero: false,
  hideFrom: { tooltip: false, viz: false, legend: false }, thresholdsStyle: { mode: 'off' },
};
const TABLE = { cellOptions: { type: 'auto' }, align: 'auto', inspect: false, filterable: undefined, width: undefined, minWidth: undefined };
const LEGEND = { displayMode: 'list', placement: 'bottom', showLegend: true, calcs: [] };

function NoData({ width, height }: D.PanelProps<any>) {
  const style = { width, height, display: 'flex', alignItems: 'center', justifyContent: 'center', color: theme.colors.text.secondary };
  return <div style={style}>No data</div>;
}

/** A plot has no place for infinity and 0/0: as in Grafana's panel, there is no point. */
function finite(frames: D.DataFrame[]): D.DataFrame[] {
  const value = (one: any) => (Number.isFinite(one) ? one : null);
  const field = (one: D.Field) => (one.type === D.FieldType.number ? { ...one, values: one.values.map(value) } : one);
  return frames.map((frame) => ({ ...frame, fields: frame.fields.map(field) }));
}

function TimeSeries(panel: D.PanelProps<any>) {
  const frames = useMemo(() => finite(panel.data.series), [panel.data.series]);
  if (!frames.length) return <NoData {...panel} />;
  return (
    <U.TimeSeries
      frames={frames}
      structureRev={panel.data.structureRev}
      timeRange={panel.timeRange}
      timeZone={panel.timeZone}
      width={panel.width}
      height={panel.height}
      legend={panel.options.legend ?? LEGEND}
      options={panel.options}
    >
      {(config: any) => <Annotations config={config} panel={panel} />}
    </U.TimeSeries>
  );
}

function values(panel: D.PanelProps<any>): D.FieldDisplay[] {
  return D.getFieldDisplayValues({
    fieldConfig: panel.fieldConfig,
    reduceOptions: panel.options.reduceOptions ?? { calcs: ['lastNotNull'], values: false },
    replaceVariables: panel.replaceVariables,
    theme,
    data: panel.data.series,
    sparkline: panel.options.graphMode === 'area',
    timeZone: panel.timeZone,
  });
}

const alignment = (list: any) => D.getDisplayValueAlignmentFactors(list) as any;

/** Without a text for no value, a panel without data says so. */
const isEmpty = (panel: D.PanelProps<any>) => !panel.data.series.length && panel.fieldConfig.defaults.noValue === undefined;

function Stat(panel: D.PanelProps<any>) {
  if (isEmpty(panel)) return <NoData {...panel} />;
  const { options } = panel;
  return (
    <U.VizRepeater
      getValues={() => values(panel)}
      source={panel.data}
      width={panel.width}
      height={panel.height}
      orientation={options.orientation ?? 'auto'}
      renderCounter={panel.renderCounter}
      autoGrid
      getAlignmentFactors={alignment}
      renderValue={(one: any) => (
        <U.BigValue
          value={one.value.display}
          sparkline={one.value.sparkline}
          count={one.count}
          width={one.width}
          height={one.height}
          theme={theme}
          colorMode={options.colorMode ?? 'value'}
          graphMode={options.graphMode ?? 'area'}
          textMode={options.textMode ?? 'auto'}
          justifyMode={options.justifyMode ?? 'auto'}
          alignmentFactors={one.alignmentFactors}
        />
      )}
    />
  );
}

function BarGauge(panel: D.PanelProps<any>) {
  if (isEmpty(panel)) return <NoData {...panel} />;
  const { options } = panel;
  return (
    <U.VizRepeater
      getValues={() => values(panel)}
      source={panel.data}
      width={panel.width}
      height={panel.height}
      orientation={options.orientation ?? 'horizontal'}
      renderCounter={panel.renderCounter}
      minVizHeight={16}
      maxVizHeight={options.maxVizHeight ?? 300}
      itemSpacing={8}
      getAlignmentFactors={alignment}
      renderValue={(one: any) => (
        <U.BarGauge
          value={one.value.display}
          width={one.width}
          height={one.height}
          theme={theme}
          field={one.value.field}
          text={options.text ?? { titleSize: 14, valueSize: 16 }}
          display={one.value.view?.getFieldDisplayProcessor(one.value.colIndex)}
          orientation={one.orientation}
          itemSpacing={8}
          lcdCellWidth={12}
          displayMode={options.displayMode ?? 'gradient'}
          showUnfilled={options.showUnfilled ?? true}
          alignmentFactors={one.alignmentFactors}
        />
      )}
    />
  );
}

function Table(panel: D.PanelProps<any>) {
  if (!panel.data.series.length) return <NoData {...panel} />;
  return (
    <U.Table
      data={panel.data.series[0]}
      width={panel.width}
      height={panel.height}
      showTypeIcons={false}
      initialSortBy={panel.options.sortBy}
      cellHeight={panel.options.cellHeight}
      timeRange={panel.timeRange}
    />
  );
}

const colored = { standardOptions: { color: { defaultValue: { mode: 'palette-classic' } } } as any };

export const plugins: Record<string, D.PanelPlugin<any, any>> = {
  timeseries: new D.PanelPlugin(TimeSeries as any).useFieldConfig({ ...colored, useCustomConfig: defaults(TIME_SERIES) }),
  stat: new D.PanelPlugin(Stat as any).useFieldConfig({}),
  bargauge: new D.PanelPlugin(BarGauge as any).useFieldConfig({}),
  table: new D.PanelPlugin(Table as any).useFieldConfig({ useCustomConfig: defaults(TABLE) }),
};

for (const [id, plugin] of Object.entries(plugins)) {
  const info = { version: '', author: { name: '' }, description: '', links: [], logos: { small: '', large: '' }, screenshots: [], updated: '' };
  plugin.meta = { id, name: id, type: 'panel', module: '', baseUrl: '', sort: 1, info } as any;
}
