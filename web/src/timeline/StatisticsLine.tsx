import "./line.css";
import { useSignal } from "@preact/signals";
import { messages } from "../chat/session";
import { statisticsOf } from "../chat/statistics";
import type { AnswerMessage } from "../chat/tree";
import { TEXT } from "../text";
import { later } from "../ui/later";

const TimelineDialog = later(async () => (await import("./TimelineDialog")).TimelineDialog);

/** The statistics under an answer. A click shows what its time was spent on. */
export function StatisticsLine({ answer, writing }: { answer: AnswerMessage; writing: boolean }) {
  const isOpen = useSignal(false);
  const words = statisticsOf(answer, writing).map((part) => <span key={part}>{part}</span>);
  if (writing || !answer.statistics) return <p class="statistics small quiet">{words}</p>;
  const asked = answer.parent === null ? undefined : messages.value.get(answer.parent);
  return (
    <>
      <button
        type="button"
        class="statistics small"
        title={TEXT.timeline.title}
        onClick={() => {
          isOpen.value = true;
        }}
      >
        {words}
      </button>
      {isOpen.value && (
        <TimelineDialog
          answer={answer}
          question={asked?.content ?? ""}
          onClose={() => {
            isOpen.value = false;
          }}
        />
      )}
    </>
  );
}
