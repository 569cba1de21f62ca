import type { Forecast } from "./api";

/** `4.3 GB`, `105 MB`. */
export function inBytes(size: number): string {
  return size >= 1e9 ? `${(size / 1e9).toFixed(1)} GB` : `${Math.round(size / 1e6)} MB`;
}

/** The bytes that a load takes on each device; the GPU only if it takes some there. */
export function taken({ host, gpu, process }: Forecast): { host: number; gpu: number } {
  return {
    host: host.weights + host.cache + host.compute + process,
    gpu: gpu.weights + gpu.cache + gpu.compute,
  };
}

/** A whole number in a field, or undefined for an empty one. Null: not a number. */
export function numberIn(text: string): number | undefined | null {
  if (text.trim() === "") return undefined;
  return /^-?\d+$/.test(text.trim()) ? Number(text) : null;
}
