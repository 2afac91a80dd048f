// Controls access to the status page.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/http/http_server.h"

namespace muster {

// Scripts send a token with each request (Authorization: Bearer). Browsers send it in a cookie that
// no script can read. Every request checks the token again, so a revoked token is refused at once.
// Thread-safe.
class PageAccess {
 public:
  // Returns OK if a token with this secret may read, or UNAUTHENTICATED (reason "TOKEN_INVALID").
  using Check = std::function<absl::Status(absl::string_view secret)>;
  using Refused = std::function<void(const HttpRequest& request, const absl::Status& why)>;

  // Requires no credentials, for a page that listens on loopback only. A page of another site could
  // reach it through its visitor's browser, under a host name of its own that resolves to this
  // host. Therefore only requests to loopback names are answered.
  static PageAccess Open() { return PageAccess(nullptr, false, nullptr); }
  // `secure`: the page uses TLS, and the cookie is never sent without TLS. `refused` is called for
  // every request that Admit() refuses, and for every sign-in with an invalid token. It may be
  // null.
  static PageAccess Checked(Check check, bool secure, Refused refused = nullptr) {
    return PageAccess(std::move(check), secure, std::move(refused));
  }

  // Returns UNAUTHENTICATED if a token is required and the request has none (reason
  // "NO_CREDENTIALS") or a bad one ("TOKEN_INVALID"). Returns PERMISSION_DENIED (reason
  // "HOST_NOT_ALLOWED") if an open page is asked under a name that is not loopback.
  absl::Status Admit(const HttpRequest& request) const;
  // Handles POST /login, a form with `token`. Sets the cookie.
  HttpResponse SignIn(const HttpRequest& request) const;
  // Handles POST /logout. Clears the cookie.
  HttpResponse SignOut(const HttpRequest& request) const;

  bool open() const { return check_ == nullptr; }

 private:
  PageAccess(Check check, bool secure, Refused refused)
      : check_(std::move(check)), secure_(secure), refused_(std::move(refused)) {}

  absl::Status Judge(const HttpRequest& request) const;
  // Returns `why`. Reports it to `refused_` if it is an error.
  absl::Status Told(const HttpRequest& request, absl::Status why) const;

  std::string CookieName() const { return secure_ ? "__Host-muster" : "muster"; }
  HttpResponse SetCookie(absl::string_view value, absl::string_view age) const;

  Check check_;  // null: no credentials are required
  bool secure_;
  Refused refused_;
};

}  // namespace muster
