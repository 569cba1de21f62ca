import { render } from "preact";
import { App } from "./app/App";
import "./ui/theme.css";
import "./ui/base.css";

const page = document.getElementById("page");
if (page) render(<App />, page);
