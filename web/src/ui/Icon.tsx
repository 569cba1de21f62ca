/** Icons in the colour of the surrounding text. Their containers have the labels. */

const PATHS = {
  attach: "M21 12.5l-8.6 8.6a5.5 5.5 0 0 1-7.8-7.8l9-9a3.7 3.7 0 0 1 5.2 5.2l-9 9a1.8 1.8 0 0 1-2.6-2.6l8.3-8.3",
  bin: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  close: "M6 6l12 12M18 6L6 18",
  columns: "M4 5h7v14H4zM13 5h7v14h-7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  export: "M12 15V4M8 8l4-4 4 4M5 15v5h14v-5",
  fork: "M7 4v16M7 15c0-5 10-3 10-9M13.5 8.5L17 5l3.5 3.5",
  import: "M12 4v11M8 11l4 4 4-4M5 15v5h14v-5",
  left: "M15 5l-7 7 7 7",
  menu: "M4 7h16M4 12h16M4 17h16",
  open: "M6 9l6 6 6-6",
  pin: "M9 4h6l-1 7 3 3v2H7v-2l3-3zM12 16v5",
  plus: "M12 5v14M5 12h14",
  question: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM9.5 9.5a2.5 2.5 0 1 1 3.8 2.1c-.9.6-1.3 1-1.3 1.9M12 16.6h.01",
  redo: "M19 12a7 7 0 1 1-2.2-5.1M17 3v4h-4",
  right: "M9 5l7 7-7 7",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5L20 20",
  send: "M12 19V5M6 11l6-6 6 6",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM9 18a2 2 0 1 0 0-4 2 2 0 0 0 0 4z",
  stop: "M7 7h10v10H7z",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  screen: "M4 5h16v11H4zM9 20h6M12 16v4",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** A button with an icon and a label. */
export function IconButton({
  icon,
  label,
  onClick,
  disabled = false,
  name,
}: {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  name?: string;
}) {
  return (
    <button
      type="button"
      class="plain icon-button"
      name={name}
      aria-label={label}
      title={label}
      onClick={onClick}
      disabled={disabled}
    >
      <Icon name={icon} />
    </button>
  );
}
