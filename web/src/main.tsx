import { render } from "preact";
import "./ui/theme";
import { App } from "./app/App";
import { installWorker } from "./app/offline";
import { watchForTitles } from "./chat/titles";
import { watchModels } from "./models/watching";
import "./ui/theme.css";
import "./ui/base.css";

const page = document.getElementById("page");
watchModels();
watchForTitles();
installWorker();
if (page) render(<App />, page);
