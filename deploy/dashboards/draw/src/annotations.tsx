// Annotations of a dashboard as dashed lines with a mark below the axis, as Grafana draws them.
import { useEffect, useLayoutEffect, useRef, useState } from 'react';
import type * as D from '@grafana/data';
import { ask } from './prometheus';
import { report, settings, theme } from './settings';

interface Annotation {
  name: string;
  enable: boolean;
  expr?: string;
  iconColor: string;
  step?: string;
  useValueForTime?: boolean | string;
}

interface Mark {
  time: number;
  color: string;
}

let wanted: Annotation[] = [];
const answers = new Map<string, Promise<Mark[]>>();

/** Of the dashboard that is drawn. */
export function setAnnotations(list: Annotation[]): void {
  wanted = list.filter((one) => one.enable && one.expr);
}

async function marks(annotation: Annotation, expr: string): Promise<Mark[]> {
  const [start, end] = [settings.from / 1000, settings.to / 1000];
  const answer = await ask('query_range', { query: expr, start, end, step: settings.scrapeSeconds });
  const times = new Set<number>();
  for (const one of answer.result) {
    for (const [time, value] of one.values) {
      const at = annotation.useValueForTime ? Number(value) : time * 1000;
      if (at >= settings.from && at <= settings.to) times.add(at);
    }
  }
  report.annotations += times.size;
  const color = theme.visualization.getColorByName(annotation.iconColor);
  return [...times].map((time) => ({ time, color }));
}

function answer(annotation: Annotation, expr: string): Promise<Mark[]> {
  const key = `${annotation.name} ${expr}`;
  if (!answers.has(key)) {
    report.pending += 1;
    const asked = marks(annotation, expr)
      .catch((error) => {
        report.fatal = `annotation ${annotation.name}: ${error.message}`;
        return [];
      })
      .finally(() => (report.pending -= 1));
    answers.set(key, asked);
  }
  return answers.get(key)!;
}

function draw(plot: any, list: Mark[]): void {
  const { ctx, bbox } = plot;
  const unit = window.devicePixelRatio;
  ctx.save();
  ctx.lineWidth = unit;
  for (const { time, color } of list) {
    const x = Math.round(plot.valToPos(time, 'x', true));
    ctx.strokeStyle = ctx.fillStyle = color;
    ctx.setLineDash([4 * unit, 4 * unit]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + bbox.height);
    ctx.lineTo(x - 4 * unit, bbox.top + bbox.height + 5 * unit);
    ctx.lineTo(x + 4 * unit, bbox.top + bbox.height + 5 * unit);
    ctx.fill();
  }
  ctx.restore();
}

/** A child of a plot: `config` is the plot's builder. */
export function Annotations({ config, panel }: { config: any; panel: D.PanelProps<any> }) {
  const [list, setList] = useState<Mark[]>([]);
  const plot = useRef<any>();
  const current = useRef(list);
  current.current = list;
  useLayoutEffect(() => {
    config.addHook('init', (made: any) => (plot.current = made));
    config.addHook('draw', (made: any) => draw(made, current.current));
  }, [config]);
  useEffect(() => {
    Promise.all(wanted.map((one) => answer(one, panel.replaceVariables(one.expr!)))).then((all) => setList(all.flat()));
  }, [panel.timeRange, panel.replaceVariables]);
  useEffect(() => plot.current?.redraw(), [list]);
  return null;
}
