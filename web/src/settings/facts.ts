/** What the server says about a model that the settings need. */

import { getJson } from "../api/client";

export interface ModelFacts {
  /** The server's defaults, by parameter. */
  params: Record<string, number | null>;
  /** Whether its chat template can turn thinking on and off, and whether it knows an effort. */
  thinking: { can_switch: boolean; has_effort: boolean };
}

interface Props {
  default_generation_settings: { params: Record<string, number | null> };
  thinking?: ModelFacts["thinking"];
}

export const NO_FACTS: ModelFacts = { params: {}, thinking: { can_switch: false, has_effort: false } };

/** This loads no model. */
export async function factsOf(model: string): Promise<ModelFacts> {
  try {
    const props = await getJson<Props>(`/props?model=${encodeURIComponent(model)}`);
    return { params: props.default_generation_settings.params, thinking: props.thinking ?? NO_FACTS.thinking };
  } catch {
    return NO_FACTS;
  }
}
