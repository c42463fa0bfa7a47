// The form for a bearer token.

import { setToken } from "../api.js";
import { h, replace } from "../dom.js";

export function login(main, message, done) {
  const field = h("textarea", { id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const button = h("button", { class: "primary" }, "Sign in");
  const form = h("form", {
    onsubmit: (event) => {
      event.preventDefault();
      // The response replaces the form, so anything typed meanwhile would be lost.
      field.disabled = button.disabled = true;
      setToken(field.value.trim());
      done();
    },
  }, h("p", {}, h("label", { for: "token" }, "Bearer token"), h("br"), field), h("p", {}, button));
  replace(main, h("section", { class: "card login" },
    h("h1", {}, "Sign in"),
    message ? h("p", { class: "error", role: "alert" }, message) : null,
    h("p", {}, "Requests run with your own permissions. The token is stored in this browser tab only. Without a token, run ", h("code", {}, "dray ui"), ": it opens this page with the permissions of your kubeconfig."),
    form,
    h("p", { class: "soft" }, "For example: ", h("code", {}, "kubectl create token SERVICEACCOUNT"))));
  field.focus();
}
