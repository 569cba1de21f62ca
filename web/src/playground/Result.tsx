import type { ComponentChildren } from "preact";

interface Props {
  label: string;
  busy: boolean;
  problem: string | null;
  /** What will be here, said while there is nothing. */
  hint: string;
  /** Null while nothing has come. */
  children: ComponentChildren;
}

/** What came of a request, or why nothing did. */
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
