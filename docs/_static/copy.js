// Pictures that are not links already lead to themselves, since their letters are small on phones.
for (const picture of document.querySelectorAll(".bd-article img")) {
  if (picture.closest("a, .sd-card")) continue;
  const link = document.createElement("a");
  link.className = "whole-picture";
  link.href = picture.src;
  picture.replaceWith(link);
  link.append(picture);
}

// Buttons that copy a command: what they said comes back after a moment.
for (const button of document.querySelectorAll("button.copy-command")) {
  const words = button.textContent;
  button.title = button.dataset.command;
  button.addEventListener("click", async () => {
    const isCopied = await (navigator.clipboard?.writeText(button.dataset.command) ?? Promise.reject()).then(() => true, () => false);
    button.textContent = isCopied ? "Copied: paste it in a terminal" : button.dataset.command;
    setTimeout(() => { button.textContent = words; }, isCopied ? 2500 : 10000);
  });
}
