/** The similarity of texts by their vectors. */

/** The cosine of each pair. A zero vector has none, so its similarity is 0. */
export function similarities(vectors: readonly (readonly number[])[]): number[][] {
  const lengths = vectors.map((vector) => Math.hypot(...vector));
  return vectors.map((left, row) =>
    vectors.map((right, column) => {
      const product = left.reduce((sum, value, place) => sum + value * (right[place] ?? 0), 0);
      const length = (lengths[row] ?? 0) * (lengths[column] ?? 0);
      return length === 0 ? 0 : product / length;
    }),
  );
}
