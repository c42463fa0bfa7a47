// For readers the server does not know yet.

import { setToken } from "../api.js";
import { h, replace } from "../dom.js";

export function login(main, message, done) {
  const field = h("textarea", { id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const button = h("button", { class: "primary" }, "Show the cluster");
  const form = h("form", {
    onsubmit: (event) => {
      event.preventDefault();
      // The answer brings another page or another form: what would be typed until then would be lost.
      field.disabled = button.disabled = true;
      setToken(field.value.trim());
      done();
    },
  }, h("p", {}, h("label", { for: "token" }, "Bearer token"), h("br"), field), h("p", {}, button));
  replace(main, h("section", { class: "card login" },
    h("h1", {}, "Who are you?"),
    message ? h("p", { class: "error", role: "alert" }, message) : null,
    h("p", {}, "The page reads the API with your own rights and keeps the token in this tab only. Without a token, run ", h("code", {}, "dray ui"), ": it opens this page with the rights of your kubeconfig."),
    form,
    h("p", { class: "soft" }, "For example: ", h("code", {}, "kubectl create token SERVICEACCOUNT"))));
  field.focus();
}
