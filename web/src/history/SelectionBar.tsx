import { useSignal } from "@preact/signals";
import { TEXT } from "../text";
import { changed, removedAll, saveFile, saveMarkdown } from "./actions";
import { foldersOf } from "./periods";
import { conversations, load } from "./store";
import type { Stored } from "./transfer";

/** What can be done with several conversations at once. */
export function SelectionBar({ ids, onDone }: { ids: string[]; onDone: () => void }) {
  const folder = useSignal("");
  async function stored(): Promise<Stored[]> {
    const found = await Promise.all(ids.map(load));
    return found.filter((each) => each !== null);
  }
  async function act(work: () => Promise<void> | void) {
    await work();
    onDone();
  }
  const none = ids.length === 0;
  return (
    <section class="selection" aria-label={TEXT.history.selection}>
      <p class="small" role="status">
        {TEXT.history.selected(ids.length)}
      </p>
      <form
        class="selection-folder"
        onSubmit={(event) => {
          event.preventDefault();
          void act(() => changed(ids, { folder: folder.value.trim() }));
        }}
      >
        <input
          class="small"
          list="folders"
          aria-label={TEXT.history.folder}
          placeholder={TEXT.history.folderHint}
          maxLength={60}
          value={folder.value}
          onInput={({ currentTarget }) => (folder.value = currentTarget.value)}
        />
        <datalist id="folders">
          {foldersOf(conversations.value).map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
        <button type="submit" class="small" disabled={none}>
          {TEXT.history.move}
        </button>
      </form>
      <div class="selection-actions">
        <button
          type="button"
          class="small"
          disabled={none}
          onClick={() => void act(async () => saveMarkdown(await stored()))}
        >
          {TEXT.history.markdown}
        </button>
        <button
          type="button"
          class="small"
          disabled={none}
          onClick={() => void act(async () => saveFile(await stored()))}
        >
          {TEXT.history.json}
        </button>
        <button type="button" class="small" disabled={none} onClick={() => void act(() => removedAll(ids))}>
          {TEXT.history.removeSelected}
        </button>
        <button type="button" class="plain small" onClick={onDone}>
          {TEXT.app.cancel}
        </button>
      </div>
    </section>
  );
}
