// Keeps the conversation, and shows of each answer how much of its prompt was cached.

const at = (id) => document.getElementById(id);
let history = [];

function show(role, content, note) {
  const item = document.createElement("li");
  item.className = role;
  item.textContent = content;
  if (note) item.append(Object.assign(document.createElement("small"), { textContent: note }));
  at("messages").append(item);
  item.scrollIntoView({ block: "end" });
}

async function send(text) {
  const asked = [...history, { role: "user", content: text }];
  show("user", text);
  const reply = await fetch("/chat", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked),
  });
  if (!reply.ok) {
    show("assistant", "No answer.", await reply.text());
    return;
  }
  const found = await reply.json();
  history = [...asked, { role: "assistant", content: found.content }];
  show("assistant", found.content, `${found.cached_tokens} of ${found.prompt_tokens} prompt tokens were cached`);
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = at("form").querySelector("button");
  const text = at("text").value;
  at("text").value = "";
  button.disabled = true;
  try {
    await send(text);
  } catch (error) {
    show("assistant", "No answer.", error.message);
  } finally {
    button.disabled = false;
    at("text").focus();
  }
});
at("again").addEventListener("click", () => {
  history = [];
  at("messages").replaceChildren();
});
