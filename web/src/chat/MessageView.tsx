import "./messages.css";
import type { Signal } from "@preact/signals";
import { useSignal } from "@preact/signals";
import { Media } from "../attachments/Media";
import { isMedia } from "../attachments/types";
import { Markdown } from "../markdown/Markdown";
import { inWords } from "../models/models";
import { models } from "../models/watching";
import { TEXT } from "../text";
import { StatisticsLine } from "../timeline/StatisticsLine";
import { copyText } from "../ui/copy";
import { IconButton } from "../ui/Icon";
import { later } from "../ui/later";
import { Preformatted } from "../ui/Preformatted";
import { Calls } from "./Calls";
import { Editor } from "./Editor";
import { canContinue, choose, continueAnswer, edit, editResult, regenerate, type Writing } from "./session";
import { seconds } from "./statistics";
import type { AnswerMessage, Message, Problem, ToolMessage, UserMessage } from "./tree";

interface Props<M extends Message = Message> {
  message: M;
  siblings: Message[];
  /** The part that has arrived, while it is generated. */
  writing: Signal<Writing> | null;
  last: boolean;
}

export function MessageView(props: Props) {
  const { message } = props;
  switch (message.role) {
    case "user":
      return <Question {...props} message={message} />;
    case "assistant":
      return <Answer {...props} message={message} />;
    case "tool":
      return <Result {...props} message={message} />;
  }
}

function Result({ message, siblings }: Props<ToolMessage>) {
  const editing = useSignal(false);
  return (
    <article class="message message-tool" aria-label={TEXT.message.toolResult} data-message={message.id}>
      <h3 class="small quiet">{TEXT.message.result}</h3>
      {editing.value ? (
        <Editor
          text={message.content}
          action={TEXT.message.send}
          onDone={(text) => {
            editing.value = false;
            if (text !== null) void editResult(message, text);
          }}
        />
      ) : (
        <>
          <Preformatted text={message.content} label={TEXT.message.result} />
          <div class="tools">
            <Branches message={message} siblings={siblings} />
            <IconButton icon="edit" label={TEXT.message.editResult} onClick={() => (editing.value = true)} />
          </div>
        </>
      )}
    </article>
  );
}

function Question({ message, siblings }: Props<UserMessage>) {
  const editing = useSignal(false);
  return (
    <article class="message message-user" aria-label={TEXT.message.you} data-message={message.id}>
      {editing.value ? (
        <Editor
          text={message.content}
          action={TEXT.message.send}
          onDone={(text) => {
            editing.value = false;
            if (text !== null) void edit(message, text);
          }}
        />
      ) : (
        <>
          <div class="bubble">
            <Attachments message={message} />
            {message.content}
          </div>
          <div class="tools">
            <Branches message={message} siblings={siblings} />
            <CopyButton text={message.content} />
            <IconButton icon="edit" name="edit" label={TEXT.message.edit} onClick={() => (editing.value = true)} />
          </div>
        </>
      )}
    </article>
  );
}

function Attachments({ message: { attachments } }: { message: UserMessage }) {
  const media = attachments.filter(isMedia);
  return (
    <>
      {media.length > 0 && (
        <div class="media">
          {media.map((file) => (
            <Media key={file.name} file={file} />
          ))}
        </div>
      )}
      {attachments.map(
        (file) =>
          !isMedia(file) && (
            <details key={file.name} class="attachment">
              <summary>{file.name}</summary>
              <Preformatted text={file.text.slice(0, 20_000)} label={file.name} />
            </details>
          ),
      )}
    </>
  );
}

const CompareDialog = later(async () => (await import("../compare/CompareDialog")).CompareDialog);
const TokenBranches = later(async () => (await import("../branch/TokenBranches")).TokenBranches);

function Answer({ message, siblings, writing, last }: Props<AnswerMessage>) {
  const editing = useSignal(false);
  const branching = useSignal(false);
  const comparing = useSignal(false);
  const answer = writing?.value.answer ?? message;
  const { content, reasoning, calls, problem } = answer;
  if (editing.value) {
    return (
      <article class="message message-assistant" aria-label={TEXT.message.answer} data-message={message.id}>
        <Editor
          text={content}
          action={TEXT.message.saveVersion}
          onDone={(text) => {
            editing.value = false;
            if (text !== null) void edit(message, text);
          }}
        />
      </article>
    );
  }
  return (
    <article
      class="message message-assistant"
      aria-label={TEXT.message.answer}
      aria-busy={writing !== null}
      data-message={message.id}
    >
      {reasoning && <Thoughts answer={answer} thinking={writing !== null && !content && calls.length === 0} />}
      {branching.value && writing === null ? (
        <TokenBranches message={message} onDone={() => (branching.value = false)} />
      ) : (
        content && <Markdown text={content} />
      )}
      {writing && !content && !reasoning && calls.length === 0 && <Waiting writing={writing.value} />}
      {calls.length > 0 && <Calls message={answer} open={last && writing === null} />}
      {problem && <ProblemView problem={problem} partial={content !== ""} onRetry={() => void regenerate(message)} />}
      {comparing.value && <CompareDialog message={message} onClose={() => (comparing.value = false)} />}
      <footer class="answer-foot">
        <StatisticsLine answer={answer} writing={writing !== null} />
        {writing === null && (
          <div class="tools">
            <Branches message={message} siblings={siblings} />
            <CopyButton text={copyOf(answer)} />
            <IconButton icon="edit" label={TEXT.message.editAnswer} onClick={() => (editing.value = true)} />
            <IconButton icon="columns" label={TEXT.compare.button} onClick={() => (comparing.value = true)} />
            {content !== "" && (
              <IconButton icon="fork" label={TEXT.branch.button} onClick={() => (branching.value = !branching.value)} />
            )}
            {last && canContinue(answer) && (
              <IconButton icon="right" label={TEXT.message.continue} onClick={() => void continueAnswer(message)} />
            )}
            <IconButton icon="redo" label={TEXT.message.regenerate} onClick={() => void regenerate(message)} />
          </div>
        )}
      </footer>
    </article>
  );
}

function Thoughts({ answer, thinking }: { answer: AnswerMessage; thinking: boolean }) {
  return (
    <details class="thoughts">
      <summary>
        {thinking ? TEXT.message.thinking : TEXT.message.thought}
        {answer.thought !== null && TEXT.message.thoughtFor(seconds(answer.thought))}
      </summary>
      <Markdown text={answer.reasoning} />
    </details>
  );
}

/** What the page waits for before the first token. */
function Waiting({ writing: { answer, progress } }: { writing: Writing }) {
  const model = models.value.find(({ id }) => id === answer.model);
  const loading = model && model.state !== "loaded";
  const words = loading
    ? `${model.id}: ${inWords(model)}`
    : progress && progress.total > 0
      ? TEXT.message.readingPrompt(progress.done, progress.total)
      : TEXT.message.waiting;
  return (
    <p class="waiting quiet">
      <span class="dot" /> {words}
    </p>
  );
}

function ProblemView({ problem, partial, onRetry }: { problem: Problem; partial: boolean; onRetry: () => void }) {
  const details = [
    problem.code,
    problem.param && TEXT.message.field(problem.param),
    problem.requestId && TEXT.message.request(problem.requestId),
  ].filter(Boolean);
  return (
    <div class="problem-box" role="alert">
      <p>
        <strong>{partial ? TEXT.message.interrupted : TEXT.message.failed}</strong>
      </p>
      <p class="problem-message">{problem.message}</p>
      {details.length > 0 && <p class="small problem-details">{details.join(" · ")}</p>}
      <button type="button" onClick={onRetry}>
        {TEXT.message.retry}
      </button>
    </div>
  );
}

/** ‹ 2/3 › if a message has several versions. */
function Branches({ message, siblings }: { message: Message; siblings: Message[] }) {
  if (siblings.length < 2) return null;
  const place = siblings.findIndex(({ id }) => id === message.id);
  const go = (to: number) => {
    const other = siblings[to];
    if (other) choose(other);
  };
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset is for forms
    <span class="branches" role="group" aria-label={TEXT.message.versions}>
      <IconButton icon="left" label={TEXT.message.previous} onClick={() => go(place - 1)} disabled={place === 0} />
      <span class="small">
        {place + 1}/{siblings.length}
      </span>
      <IconButton
        icon="right"
        label={TEXT.message.next}
        onClick={() => go(place + 1)}
        disabled={place === siblings.length - 1}
      />
    </span>
  );
}

/** The text of an answer, and its calls as JSON. */
function copyOf({ content, calls }: AnswerMessage): string {
  const written = calls.map(({ name, arguments: text }) => {
    try {
      return JSON.stringify({ name, arguments: JSON.parse(text) }, null, 2);
    } catch {
      return `${name}(${text})`; // cut short
    }
  });
  return [...(content ? [content] : []), ...written].join("\n\n");
}

function CopyButton({ text }: { text: string }) {
  const label = useSignal<string>(TEXT.app.copy);
  async function copy() {
    label.value = (await copyText(text)) ? TEXT.app.copied : TEXT.app.copyForbidden;
    setTimeout(() => (label.value = TEXT.app.copy), 1500);
  }
  return <IconButton icon="copy" label={label.value} onClick={() => void copy()} />;
}
