// The server's API as the page uses it. Addresses are relative, so that the page also works below a path.

const kStored = "longspan-key";  // gone with the tab

export const key = () => sessionStorage.getItem(kStored) ?? "";
export const set_key = (value) => sessionStorage.setItem(kStored, value);

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(path, body, signal) {
  const headers = {};
  if (key()) headers.Authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal,
  });
  if (response.ok) return response;
  let message = response.statusText;
  try {
    message = (await response.json()).error.message;
  } catch { /* a proxy's page, say: the status has to do */ }
  throw new ApiError(response.status, message || `HTTP ${response.status}`);
}

export const json = async (path, body) => (await call(path, body)).json();

// The JSON of each server-sent event; comments are skipped.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}
