/** What the user chooses for a column of a comparison. */

export interface Choice {
  model: string;
  /** As typed; empty: as the chat has it. */
  temperature: string;
  seed: string;
}

/** The fields of a request that differ from the chat's own settings. */
export function changes({ temperature, seed }: Choice, deterministic: boolean): Record<string, unknown> {
  const numbers = Object.entries({ temperature, seed })
    .map(([name, value]) => [name, Number(value.trim().replace(",", "."))] as const)
    .filter(([name, value]) => ({ temperature, seed })[name as "seed"].trim() !== "" && Number.isFinite(value));
  return { ...(deterministic && { deterministic: true, seed: 0 }), ...Object.fromEntries(numbers) };
}
