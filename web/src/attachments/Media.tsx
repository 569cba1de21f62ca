import "./media.css";
import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { TEXT } from "../text";
import { Dialog } from "../ui/Dialog";
import type { MediaFile } from "./types";

/** A small picture that opens in full size, or a player. */
export function Media({ file }: { file: MediaFile }) {
  const address = useAddress(file.data);
  const open = useSignal(false);
  if (file.kind === "audio") {
    return (
      // biome-ignore lint/a11y/useMediaCaption: the user's own file
      <audio class="sound" controls src={address} aria-label={file.name} title={file.name} />
    );
  }
  return (
    <>
      <button
        type="button"
        class="plain picture"
        title={TEXT.attachments.show(file.name)}
        onClick={() => (open.value = true)}
      >
        {address && <img src={address} alt={file.name} />}
      </button>
      {open.value && (
        <Dialog title={file.name} onClose={() => (open.value = false)} wide>
          <img class="picture-large" src={address} alt={file.name} />
        </Dialog>
      )}
    </>
  );
}

/** An address of the file while it is shown. */
function useAddress(file: Blob): string | undefined {
  const [address, setAddress] = useState<string>();
  useEffect(() => {
    const made = URL.createObjectURL(file);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return address;
}
