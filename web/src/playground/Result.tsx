import type { ComponentChildren } from "preact";

interface Props {
  label: string;
  busy: boolean;
  problem: string | null;
  /** The text of the empty state. */
  hint: string;
  /** Null before a result arrives. */
  children: ComponentChildren;
}

/** The result of a request, or its error. */
export function Result({ label, busy, problem, hint, children }: Props) {
  return (
    <section class="panel result" aria-label={label} aria-busy={busy}>
      {problem !== null && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {children ?? (problem === null && <p class="quiet">{hint}</p>)}
    </section>
  );
}
