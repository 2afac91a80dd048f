// Who may look at the status page.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/http/http_server.h"

namespace muster {

// Scripts show a token with each request (Authorization: Bearer), browsers a cookie that has it and
// that no script can read. What is asked for is read again each time: a token that was revoked
// counts no more. Thread-safe.
class PageAccess {
 public:
  // Whether a token with this secret may read. UNAUTHENTICATED (reason "TOKEN_INVALID").
  using Check = std::function<absl::Status(absl::string_view secret)>;
  using Refused = std::function<void(const HttpRequest& request, const absl::Status& why)>;

  // Nobody is asked: the page is on loopback alone. A page of another site must not read it through
  // its visitor's browser, by a name of its own that leads to this host: so only names of loopback
  // are answered to.
  static PageAccess Open() { return PageAccess(nullptr, false, nullptr); }
  // `secure`: with TLS, and then the cookie goes nowhere without. `refused` is told of whoever is
  // not let in; it may be null.
  static PageAccess Checked(Check check, bool secure, Refused refused = nullptr) {
    return PageAccess(std::move(check), secure, std::move(refused));
  }

  // OK, or UNAUTHENTICATED (reason "NO_CREDENTIALS", "TOKEN_INVALID"), or PERMISSION_DENIED (reason
  // "HOST_NOT_ALLOWED").
  absl::Status Admit(const HttpRequest& request) const;
  // POST /login, a form with `token`: sets the cookie.
  HttpResponse SignIn(const HttpRequest& request) const;
  // POST /logout: clears it.
  HttpResponse SignOut(const HttpRequest& request) const;

  bool open() const { return check_ == nullptr; }

 private:
  PageAccess(Check check, bool secure, Refused refused)
      : check_(std::move(check)), secure_(secure), refused_(std::move(refused)) {}

  absl::Status Judge(const HttpRequest& request) const;
  // `why`, which is told if it is a refusal.
  absl::Status Told(const HttpRequest& request, absl::Status why) const;

  std::string CookieName() const { return secure_ ? "__Host-muster" : "muster"; }
  HttpResponse SetCookie(absl::string_view value, absl::string_view age) const;

  Check check_;  // null: open
  bool secure_;
  Refused refused_;
};

}  // namespace muster
