/** Preformatted text in a frame that also scrolls without a mouse. */
export function Preformatted({ text, label }: { text: string; label: string }) {
  return (
    // biome-ignore lint/a11y/useSemanticElements: a section would not keep the lines
    <pre
      role="region"
      aria-label={label}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: or it could not be scrolled
      tabIndex={0}
    >
      {text}
    </pre>
  );
}
