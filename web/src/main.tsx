import { render } from "preact";
import "./ui/theme";
import { App } from "./app/App";
import { watchModels } from "./models/watching";
import "./ui/theme.css";
import "./ui/base.css";

const page = document.getElementById("page");
watchModels();
if (page) render(<App />, page);
