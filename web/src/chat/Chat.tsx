import "./chat.css";

export function Chat() {
  return <p>Chat</p>;
}
