// The page of a run in one file: its sections are inside, and nothing is asked of anybody.

import { archive, embedded } from "./embedded.js";
import { assembled, revealed } from "./page.js";

const data = embedded();
const page = assembled(archive(data), () => {}, false);
for (const [name, value] of Object.entries(data.sections)) page.sections[name](value);
page.connected("open");
revealed();
page.again();
