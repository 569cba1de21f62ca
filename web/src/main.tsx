import { render } from "preact";
import "./ui/theme";
import { App } from "./app/App";
import { watchForTitles } from "./chat/titles";
import { watchModels } from "./models/watching";
import "./ui/theme.css";
import "./ui/base.css";

const page = document.getElementById("page");
watchModels();
watchForTitles();
if (page) render(<App />, page);
