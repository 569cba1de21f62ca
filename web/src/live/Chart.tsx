import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { TEXT } from "../text";
import type { Column } from "./history";
import { scheme } from "./scheme";
import { duration } from "./words";

export interface Line {
  name: string;
  /** A custom property of the theme. */
  colour: string;
  values: Column;
  dash?: number[];
  fill?: boolean;
}

interface Props {
  title: string;
  note?: string;
  times: number[];
  /** The seconds that are shown, up to the last sample. */
  span: number;
  lines: Line[];
  write: (value: number) => string;
  /** The values are whole numbers. */
  whole?: boolean;
  /** Use a compressed scale, so that small values beside large ones are visible. */
  compressed?: boolean;
}

const HEIGHT = 132;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/** Lines over the last minutes, with a legend of the newest values or those under the pointer. */
export function Chart({ title, note, times, span, lines, write, whole = false, compressed = false }: Props) {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const colours = scheme.value;
  const shape = lines.map(({ name }) => name).join();
  const at = pointed !== null && pointed < times.length ? pointed : times.length - 1;

  // The plot is recreated when its lines or the page's colours change. New samples only change its data.
  useEffect(() => {
    const place = holder.current;
    if (!place) return;
    const made = new uPlot(optionsFor(place, lines, write, { whole, compressed }, setPointed), [[]], place);
    plot.current = made;
    show(made, times, lines, span);
    const resized = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: HEIGHT }));
    resized.observe(place);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [shape, colours]);

  useEffect(() => {
    if (plot.current) show(plot.current, times, lines, span);
  }, [times, lines, span]);

  return (
    <section class="panel chart" aria-label={title}>
      <h2>
        {title} {note && <span class="quiet">{note}</span>}
      </h2>
      <ul class="legend">
        {lines.map(({ name, colour, values, dash }) => (
          <li key={name}>
            <span class={dash ? "swatch dashed" : "swatch"} style={{ color: `var(${colour})` }} aria-hidden="true" />
            {name} <strong>{written(values[at], write)}</strong>
          </li>
        ))}
      </ul>
      <div ref={holder} class="plot" aria-hidden="true" />
    </section>
  );
}

function written(value: number | null | undefined, write: (value: number) => string): string {
  return value === null || value === undefined ? "–" : write(value);
}

function show(plot: uPlot, times: number[], lines: readonly Line[], span: number): void {
  const last = times.at(-1) ?? 0;
  plot.batch(() => {
    plot.setData([times, ...lines.map(({ values }) => values)]);
    plot.setScale("x", { min: last - span, max: last });
  });
}

function optionsFor(
  place: HTMLElement,
  lines: readonly Line[],
  write: (value: number) => string,
  { whole, compressed }: { whole: boolean; compressed: boolean },
  onPoint: (index: number | null) => void,
): uPlot.Options {
  const colour = coloursOf(place);
  const axis = {
    stroke: colour("--quiet"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: place.clientWidth,
    height: HEIGHT,
    padding: [8, 16, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
    scales: {
      x: { time: true },
      y: {
        range: (_, __, highest) => [0, (highest || 1) * 1.1],
        ...(compressed && { distr: 4 as const, asinh: 10 }),
      },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 22, gap: 4, splits: moments, values: agos },
      {
        ...axis,
        size: 54,
        gap: 4,
        space: 34,
        values: (_, splits) => splits.map(write),
        ...(whole && { incrs: WHOLE }),
        ...(compressed && { splits: marks, filter: (_: uPlot, splits: number[]) => splits }),
      },
    ],
    series: [
      {},
      ...lines.map(({ name, colour: property, dash, fill }) => ({
        label: name,
        stroke: colour(property),
        width: 1.75,
        points: { show: false },
        spanGaps: false,
        ...(dash && { dash }),
        ...(fill && { fill: colour(property, 0.14) }),
      })),
    ],
    hooks: { setCursor: [({ cursor }) => onPoint(cursor.idx ?? null)] },
  };
}

/** Ticks up to the largest value, with growing distances. */
function marks(_: uPlot, __: number, ___: number, largest: number): number[] {
  const below = [10, 30, 100, 300, 1000, 3000, 10_000, 30_000].filter((mark) => mark <= largest);
  return [0, ...(below.length > 0 ? below : [largest / 2])];
}

/** Now, and two or three earlier times. */
function moments(_: uPlot, __: number, first: number, last: number): number[] {
  const step = last - first <= 60 ? 20 : (last - first) / 2.5;
  return [0, 1, 2, 3].map((steps) => last - steps * step).filter((moment) => moment >= first);
}

function agos(plot: uPlot, moments: number[]): string[] {
  const now = plot.scales.x?.max ?? 0;
  return moments.map((moment) => (now - moment < 1 ? TEXT.live.now : `−${duration(now - moment)}`));
}

/** A canvas does not support custom properties, so their current colours are read from the page. */
function coloursOf(place: HTMLElement): (property: string, opacity?: number) => string {
  return (property, opacity = 1) => {
    place.style.color = `color-mix(in srgb, var(${property}) ${100 * opacity}%, transparent)`;
    const found = getComputedStyle(place).color;
    place.style.color = "";
    return found;
  };
}
