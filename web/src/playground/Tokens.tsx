import { signal } from "@preact/signals";
import { Fragment } from "preact";
import { postJson } from "../api/client";
import { TEXT } from "../text";
import { CopyCall } from "./CopyCall";
import { Check, Literal, sentBy } from "./fields";
import { ModelPicker } from "./ModelPicker";
import { shown, type TokenPiece } from "./pieces";
import { question } from "./question";
import { Result } from "./Result";

interface Read {
  tokens: readonly TokenPiece[];
  characters: number;
}

/** More would be slow to draw. */
const MOST_SHOWN = 4000;

const model = signal("");
const text = signal("<|im_start|>user\nWhat does a horse eat? 🐎<|im_end|>\n");
const addSpecial = signal(false);
const parseSpecial = signal(true);
const withIds = signal(true);
const { answer: read, problem, asking, ask } = question<Read>();

/** A text as tokens of a model. */
export function Tokens() {
  function send() {
    if (!asking.value && model.value !== "") void ask(tokenize);
  }
  return (
    <div class="bench">
      <form class="panel controls" {...sentBy(send)}>
        <ModelPicker chosen={model} />
        <Literal rows={8} value={text}>
          {TEXT.playground.text}
        </Literal>
        <Check value={parseSpecial}>{TEXT.playground.parseSpecial}</Check>
        <Check value={addSpecial}>{TEXT.playground.addSpecial}</Check>
        <div class="run">
          <button type="submit" class="primary" disabled={asking.value || model.value === ""}>
            {TEXT.playground.tokenize}
          </button>
          <CopyCall path="/tokenize" body={bodyOf()} />
        </div>
      </form>
      <Result
        label={TEXT.playground.tokens}
        busy={asking.value}
        problem={problem.value}
        hint={TEXT.playground.tokensHint}
      >
        {read.value && <Pieces read={read.value} />}
      </Result>
    </div>
  );
}

function Pieces({ read: { tokens, characters } }: { read: Read }) {
  return (
    <>
      <div class="pieces-head">
        <p class="facts" role="status">
          <strong>{tokens.length}</strong> tokens of <strong>{characters}</strong> characters
          {tokens.length > MOST_SHOWN && TEXT.playground.firstShown(MOST_SHOWN)}
        </p>
        <Check value={withIds}>{TEXT.playground.ids}</Check>
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

async function tokenize(): Promise<Read> {
  const asked = bodyOf();
  const { tokens } = await postJson<{ tokens: TokenPiece[] }>("/tokenize", asked);
  return { tokens, characters: [...asked.content].length };
}
