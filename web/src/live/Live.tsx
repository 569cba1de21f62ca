import "./live.css";

export function Live() {
  return <p>Live</p>;
}
