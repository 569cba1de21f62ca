import "./playground.css";

export function Playground() {
  return <p>Playground</p>;
}
