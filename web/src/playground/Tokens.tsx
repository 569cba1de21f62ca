import { signal } from "@preact/signals";
import { Fragment } from "preact";
import { ApiError, postJson } from "../api/client";
import { CopyCall } from "./CopyCall";
import { ModelPicker } from "./ModelPicker";
import { shown, type TokenPiece } from "./pieces";

interface Read {
  tokens: readonly TokenPiece[];
  characters: number;
}

/** A browser would take long to draw more. */
const MOST_SHOWN = 4000;

const model = signal("");
const text = signal("<|im_start|>user\nWhat does a horse eat? 🐎<|im_end|>\n");
const addSpecial = signal(false);
const parseSpecial = signal(true);
const withIds = signal(true);
const read = signal<Read | null>(null);
const problem = signal<string | null>(null);
const asking = signal(false);

const OPTIONS = [
  { value: parseSpecial, title: "Read control tokens in the text as such" },
  { value: addSpecial, title: "Add those that begin a prompt" },
];

/** A text as a model reads it. */
export function Tokens() {
  return (
    <div class="bench">
      <form
        class="panel controls"
        onSubmit={(event) => {
          event.preventDefault();
          void tokenize();
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void tokenize();
        }}
      >
        <ModelPicker chosen={model} />
        <label>
          Text
          <textarea
            rows={8}
            class="literal"
            value={text.value}
            onInput={(event) => {
              text.value = event.currentTarget.value;
            }}
          />
        </label>
        {OPTIONS.map(({ value, title }) => (
          <label key={title} class="check">
            <input
              type="checkbox"
              checked={value.value}
              onChange={(event) => {
                value.value = event.currentTarget.checked;
              }}
            />{" "}
            {title}
          </label>
        ))}
        <div class="run">
          <button type="submit" class="primary" disabled={asking.value || model.value === ""}>
            Tokenize
          </button>
          <CopyCall path="/tokenize" body={bodyOf()} />
        </div>
      </form>
      <section class="panel result" aria-label="Tokens" aria-busy={asking.value}>
        {problem.value !== null && (
          <p class="problem" role="alert">
            {problem.value}
          </p>
        )}
        {read.value === null && problem.value === null && (
          <p class="quiet">The text appears here as the model reads it. Ctrl+Enter sends it.</p>
        )}
        {read.value !== null && <Pieces read={read.value} />}
      </section>
    </div>
  );
}

function Pieces({ read: { tokens, characters } }: { read: Read }) {
  return (
    <>
      <div class="pieces-head">
        <p class="facts" role="status">
          <strong>{tokens.length}</strong> tokens of <strong>{characters}</strong> characters
          {tokens.length > MOST_SHOWN && `; the first ${MOST_SHOWN} are shown`}
        </p>
        <label class="check">
          <input
            type="checkbox"
            checked={withIds.value}
            onChange={(event) => {
              withIds.value = event.currentTarget.checked;
            }}
          />{" "}
          Ids
        </label>
      </div>
      <div class={withIds.value ? "token-text with-ids" : "token-text"}>
        {tokens.slice(0, MOST_SHOWN).map(({ id, piece }, place) => {
          const { kind, text, breaks } = shown(piece);
          return (
            <Fragment key={place}>
              <span class={`token ${kind} tint-${place % 5}`} title={`token ${id}`}>
                {text}
                {withIds.value && <small>{id}</small>}
              </span>
              {Array.from({ length: breaks }, (_, line) => (
                <br key={line} />
              ))}
            </Fragment>
          );
        })}
      </div>
    </>
  );
}

function bodyOf() {
  return {
    model: model.value,
    content: text.value,
    add_special: addSpecial.value,
    parse_special: parseSpecial.value,
    with_pieces: true,
  };
}

async function tokenize(): Promise<void> {
  if (asking.value || model.value === "") return;
  asking.value = true;
  problem.value = null;
  const asked = bodyOf();
  try {
    const { tokens } = await postJson<{ tokens: TokenPiece[] }>("/tokenize", asked);
    read.value = { tokens, characters: [...asked.content].length };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    read.value = null;
    problem.value = error.message;
  }
  asking.value = false;
}
