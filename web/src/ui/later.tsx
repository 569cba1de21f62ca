/** Parts of the page that are loaded when they are first shown. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

export function later<Props extends object>(load: () => Promise<ComponentType<Props>>): ComponentType<Props> {
  let loaded: ComponentType<Props> | null = null;
  return function Later(props: Props) {
    const [, setLoaded] = useState(loaded !== null);
    useEffect(() => {
      if (loaded) return;
      load().then((component) => {
        loaded = component;
        setLoaded(true);
      });
    }, []);
    const Component = loaded;
    return Component && <Component {...props} />;
  };
}
