/** What the server says of downloads, of the hub and of the memory of a load. An admin key is required. */

import { getJson, postJson, remove } from "../api/client";

export interface Download {
  name: string;
  state: "running" | "finished" | "failed" | "cancelled";
  done: number;
  total: number;
  model: string | null;
  error: string | null;
}

export interface Repository {
  name: string;
  downloads: number;
  likes: number;
  updated: string | null;
  is_gated: boolean;
}

export interface RepositoryModel {
  /** As a download names it. */
  name: string;
  quantisation: string;
  size: number;
  /** Null: unknown. */
  fits: boolean | null;
}

interface Parts {
  weights: number;
  cache: number;
  compute: number;
}

export interface Forecast {
  host: Parts;
  gpu: Parts;
  process: number;
  limit: Partial<Record<"host" | "gpu", number>>;
  fits: boolean;
  problem: string | null;
}

/** Options of a load; those that are absent are as the server is configured. */
export interface LoadOptions {
  n_ctx?: number;
  parallel?: number;
  n_gpu_layers?: number;
  cache_type_k?: string;
  cache_type_v?: string;
}

export async function downloads(): Promise<{ folder: string | null; downloads: Download[] }> {
  return getJson("/admin/downloads");
}

export async function startDownload(name: string): Promise<void> {
  await postJson("/models", { model: name });
}

export async function cancelDownload(name: string): Promise<void> {
  await postJson("/models/unload", { model: name });
}

export async function deleteModel(id: string): Promise<void> {
  await remove(`/models?model=${encodeURIComponent(id)}`);
}

export async function search(text: string): Promise<Repository[]> {
  const found = await getJson<{ repositories: Repository[] }>(`/admin/hub?search=${encodeURIComponent(text)}`);
  return found.repositories;
}

export async function contents(repository: string): Promise<RepositoryModel[]> {
  const path = repository.split("/").map(encodeURIComponent).join("/");
  return (await getJson<{ models: RepositoryModel[] }>(`/admin/hub/${path}`)).models;
}

export async function forecast(model: string, options: LoadOptions): Promise<Forecast> {
  return postJson("/admin/estimate", { model, options });
}

export async function load(model: string, options: LoadOptions): Promise<void> {
  await postJson("/models/load", { model, options });
}
