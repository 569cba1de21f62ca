import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { href } from "../app/route";
import { newChat, SEARCH_ID, searchWanted } from "../chat/panels";
import { conversation as opened } from "../chat/session";
import type { Conversation } from "../chat/tree";
import { Icon, IconButton } from "../ui/Icon";
import { changed, removed, renamed, saveFile, takeFile } from "./actions";
import "./history.css";
import { TEXT } from "../text";
import { type Period, sections } from "./periods";
import { SelectionBar } from "./SelectionBar";
import type { Found } from "./search";
import { all, conversations, load, search } from "./store";

/** All conversations in this browser: search, rename, delete, export. */
export function HistoryPanel({ onClose }: { onClose: () => void }) {
  const query = useSignal("");
  const results = useSignal<Found[] | null>(null);
  const chooser = useRef<HTMLInputElement>(null);
  /** The chosen conversations; null: none are being chosen. */
  const selected = useSignal<ReadonlySet<string> | null>(null);
  const asked = query.value.trim();
  const known = conversations.value;
  useEffect(() => {
    if (asked === "") {
      results.value = null;
      return;
    }
    let outdated = false;
    const timer = setTimeout(async () => {
      const found = await search(asked);
      if (!outdated) results.value = found;
    }, 120);
    return () => {
      outdated = true;
      clearTimeout(timer);
    };
  }, [asked, known]);

  const wanted = searchWanted.value;
  useEffect(() => {
    if (!wanted) return;
    searchWanted.value = false;
    requestAnimationFrame(() => document.getElementById(SEARCH_ID)?.focus());
  }, [wanted]);

  const excerpts = new Map(results.value?.map(({ conversation, excerpt }) => [conversation.id, excerpt]));
  const listed = results.value?.map(({ conversation }) => conversation) ?? known;
  return (
    <nav class="history" aria-label={TEXT.history.label}>
      <div class="history-head">
        <button type="button" class="new-chat" onClick={newChat}>
          <Icon name="plus" /> {TEXT.chat.newChat}
        </button>
        <span class="phone-only">
          <IconButton icon="close" label={TEXT.history.close} onClick={onClose} />
        </span>
      </div>
      <label class="search">
        <Icon name="search" />
        <span class="hidden-visually">{TEXT.history.search}</span>
        <input
          id={SEARCH_ID}
          type="search"
          placeholder={TEXT.history.searchHint}
          autocomplete="off"
          value={query.value}
          onInput={({ currentTarget }) => (query.value = currentTarget.value)}
        />
      </label>
      <div class="history-list">
        {sections(listed, new Date()).map((section) => (
          <Section key={`${section.isFolder ? "folder " : ""}${section.name}`} section={section} isOpen={asked !== ""}>
            {section.conversations.map((each) => (
              <Entry
                key={each.id}
                conversation={each}
                excerpt={excerpts.get(each.id) ?? null}
                selected={selected.value?.has(each.id) ?? null}
                onSelect={() => {
                  const next = new Set(selected.value);
                  if (!next.delete(each.id)) next.add(each.id);
                  selected.value = next;
                }}
              />
            ))}
          </Section>
        ))}
        {listed.length === 0 && (
          <p class="small quiet history-empty">{asked ? TEXT.history.noResults : TEXT.history.empty}</p>
        )}
      </div>
      {selected.value && <SelectionBar ids={[...selected.value]} onDone={() => (selected.value = null)} />}
      <div class="history-foot">
        <button
          type="button"
          class="plain small"
          aria-pressed={selected.value !== null}
          disabled={known.length === 0}
          onClick={() => (selected.value = selected.value ? null : new Set())}
        >
          {TEXT.history.select}
        </button>
        <button
          type="button"
          class="plain small"
          disabled={known.length === 0}
          onClick={async () => saveFile(await all())}
        >
          <Icon name="export" /> {TEXT.history.export}
        </button>
        <button type="button" class="plain small" onClick={() => chooser.current?.click()}>
          <Icon name="import" /> {TEXT.history.import}
        </button>
        <input
          ref={chooser}
          type="file"
          accept="application/json,.json"
          hidden
          aria-label={TEXT.history.file}
          onChange={async ({ currentTarget }) => {
            const file = currentTarget.files?.[0];
            if (file) await takeFile(file);
            if (chooser.current) chooser.current.value = "";
          }}
        />
      </div>
    </nav>
  );
}

/** A folder can be closed. */
function Section({
  section: { name, isFolder },
  isOpen,
  children,
}: {
  section: Period;
  isOpen: boolean;
  children: ComponentChildren;
}) {
  if (isFolder) {
    return (
      <details
        class="folder"
        open={isOpen || localStorage.getItem(FOLDER + name) !== "closed"}
        onToggle={({ currentTarget }) => {
          // A search opens all of them.
          if (!isOpen) localStorage.setItem(FOLDER + name, currentTarget.open ? "open" : "closed");
        }}
      >
        <summary class="small quiet">{name}</summary>
        <ul>{children}</ul>
      </details>
    );
  }
  return (
    <section aria-label={name}>
      <h2 class="small quiet">{name}</h2>
      <ul>{children}</ul>
    </section>
  );
}

const FOLDER = "paddock.folder.";

function Entry({
  conversation,
  excerpt,
  selected,
  onSelect,
}: {
  conversation: Conversation;
  excerpt: string | null;
  /** Null: conversations are not being chosen. */
  selected: boolean | null;
  onSelect: () => void;
}) {
  const renaming = useSignal(false);
  const link = useRef<HTMLAnchorElement>(null);
  const wasRenamed = useRef(false);
  useEffect(() => {
    // By Enter or Esc. After a click elsewhere the focus is there.
    if (!renaming.value && wasRenamed.current && document.activeElement === document.body) link.current?.focus();
    wasRenamed.current = renaming.value;
  }, [renaming.value]);
  const { id, title } = conversation;
  if (renaming.value) {
    return (
      <li class="entry">
        <TitleField
          title={title}
          onDone={(changed) => {
            renaming.value = false;
            if (changed) void renamed(conversation, changed);
          }}
        />
      </li>
    );
  }
  if (selected !== null) {
    return (
      <li class="entry">
        <label class="entry-choice">
          <input type="checkbox" aria-label={TEXT.history.selectOne(title)} checked={selected} onChange={onSelect} />
          <span class="entry-title">{title}</span>
        </label>
      </li>
    );
  }
  return (
    <li class="entry">
      <a ref={link} href={href("chat", id)} aria-current={opened.value?.id === id ? "page" : undefined}>
        <span class="entry-title">{title}</span>
        {excerpt && <span class="small quiet entry-excerpt">{excerpt}</span>}
      </a>
      <span class="entry-tools">
        <IconButton
          icon="pin"
          label={(conversation.pinned ? TEXT.history.unpin : TEXT.history.pin)(title)}
          onClick={() => void changed([id], { pinned: !conversation.pinned })}
        />
        <IconButton icon="edit" label={TEXT.history.rename(title)} onClick={() => (renaming.value = true)} />
        <IconButton
          icon="export"
          label={TEXT.history.exportOne(title)}
          onClick={async () => {
            const stored = await load(id);
            if (stored) await saveFile([stored], title);
          }}
        />
        <IconButton icon="bin" label={TEXT.history.remove(title)} onClick={() => void removed(conversation)} />
      </span>
    </li>
  );
}

function TitleField({ title, onDone }: { title: string; onDone: (title: string | null) => void }) {
  const field = useRef<HTMLInputElement>(null);
  const done = useRef(false);
  useEffect(() => {
    field.current?.select();
  }, []);
  function finish(changed: string | null) {
    if (done.current) return;
    done.current = true;
    onDone(changed?.trim() || null);
  }
  return (
    <input
      ref={field}
      aria-label={TEXT.history.title}
      maxLength={200}
      defaultValue={title}
      onBlur={({ currentTarget }) => finish(currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter") finish(event.currentTarget.value);
        if (event.key === "Escape") {
          event.preventDefault();
          finish(null);
        }
      }}
    />
  );
}
