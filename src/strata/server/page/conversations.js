// Conversations of this browser: kept in its own database, and in memory where it has none.

const STORE = "conversations";

let database = null;
const inMemory = new Map();

/** Opens the database; a browser that refuses one keeps conversations until the page is closed. */
export async function openStore() {
  try {
    database = await new Promise((resolve, reject) => {
      const wish = indexedDB.open("strata", 1);
      wish.onupgradeneeded = () => wish.result.createObjectStore(STORE, { keyPath: "id" });
      wish.onsuccess = () => resolve(wish.result);
      wish.onerror = () => reject(wish.error);
    });
    for (const conversation of await run("readonly", (store) => store.getAll())) {
      // An answer that was being written when the page was closed ended there.
      for (const message of conversation.messages) {
        if (message.status === "waiting" || message.status === "writing") message.status = "stopped";
      }
      inMemory.set(conversation.id, conversation);
    }
  } catch {
    database = null;
  }
}

export const isKept = () => database !== null;

/** All conversations, the one used last first. */
export function all() {
  return [...inMemory.values()].sort((one, other) => other.updated - one.updated);
}

export const find = (id) => inMemory.get(id) ?? null;

/** A new conversation; kept once something was said in it. */
export function create(system = "") {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? `${now}-${Math.random()}`, title: "", system, created: now, updated: now, messages: [] };
}

export async function save(conversation) {
  conversation.updated = Date.now();
  inMemory.set(conversation.id, conversation);
  if (database === null) return;
  try {
    // A copy without what only this page's views know.
    await run("readwrite", (store) => store.put(JSON.parse(JSON.stringify(conversation))));
  } catch (error) {
    // A full disk takes nothing from the page but its memory of this conversation.
    console.warn("the conversation could not be kept", error);
  }
}

export async function remove(id) {
  inMemory.delete(id);
  if (database !== null) await run("readwrite", (store) => store.delete(id));
}

export async function removeAll() {
  inMemory.clear();
  if (database !== null) await run("readwrite", (store) => store.clear());
}

function run(mode, work) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(STORE, mode);
    const wish = work(transaction.objectStore(STORE));
    transaction.oncomplete = () => resolve(wish.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}
