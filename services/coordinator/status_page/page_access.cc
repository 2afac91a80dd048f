#include "services/coordinator/status_page/page_access.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/status/status.h"
#include "services/coordinator/status_page/status_json.h"

namespace muster {
namespace {

constexpr char kCookieSeconds[] = "43200";  // half a day; the token may expire earlier

// Expects a host with or without a port.
bool IsLoopbackName(absl::string_view host) {
  if (!absl::EndsWith(host, "]")) host = host.substr(0, host.rfind(':'));
  return absl::EqualsIgnoreCase(host, "localhost") || host == "127.0.0.1" || host == "[::1]";
}

// Returns true if another site's script, or a link there, caused the request.
bool IsFromElsewhere(const HttpRequest& request) {
  const absl::string_view site = request.Header("sec-fetch-site");
  return !site.empty() && site != "same-origin" && site != "none";
}

absl::Status NoCredentials() {
  return WithReason(absl::UnauthenticatedError("the request has no token"), "NO_CREDENTIALS");
}

HttpResponse Refuse(int status, const absl::Status& why) {
  return {.status = status, .body = ToJson(why)};
}

}  // namespace

absl::Status PageAccess::Told(const HttpRequest& request, absl::Status why) const {
  if (!why.ok() && refused_ != nullptr) refused_(request, why);
  return why;
}

absl::Status PageAccess::Admit(const HttpRequest& request) const {
  return Told(request, Judge(request));
}

absl::Status PageAccess::Judge(const HttpRequest& request) const {
  if (open()) {
    if (IsLoopbackName(request.Header("host"))) return absl::OkStatus();
    return WithReason(
        absl::PermissionDeniedError("without --tls the page is only for this host: it answers to "
                                    "localhost, 127.0.0.1 and [::1]"),
        "HOST_NOT_ALLOWED");
  }
  if (absl::string_view authorization = request.Header("authorization"); !authorization.empty()) {
    if (absl::ConsumePrefix(&authorization, "Bearer ")) return check_(authorization);
    return WithReason(absl::UnauthenticatedError("the Authorization header has no bearer token"),
                      "TOKEN_INVALID");
  }
  for (absl::string_view cookie : absl::StrSplit(request.Header("cookie"), ';')) {
    cookie = absl::StripAsciiWhitespace(cookie);
    if (absl::ConsumePrefix(&cookie, absl::StrCat(CookieName(), "="))) return check_(cookie);
  }
  return NoCredentials();
}

HttpResponse PageAccess::SignIn(const HttpRequest& request) const {
  if (IsFromElsewhere(request)) return Refuse(403, NoCredentials());
  if (open()) return {.status = 204};
  const std::string token(
      absl::StripAsciiWhitespace(FormValue(request.body, "token").value_or("")));
  if (token.empty()) return Refuse(401, NoCredentials());
  const absl::Status found = Told(request, check_(token));
  if (!found.ok()) return Refuse(401, found);
  return SetCookie(token, kCookieSeconds);
}

HttpResponse PageAccess::SignOut(const HttpRequest& request) const {
  if (IsFromElsewhere(request)) return Refuse(403, NoCredentials());
  return SetCookie("", "0");
}

// Needs no escaping: a valid token has only characters that a cookie may have.
HttpResponse PageAccess::SetCookie(absl::string_view value, absl::string_view age) const {
  return {.status = 204,
          .headers = {{"Set-Cookie",
                       absl::StrCat(CookieName(), "=", value, "; Path=/; Max-Age=", age,
                                    "; HttpOnly; SameSite=Strict", secure_ ? "; Secure" : "")}}};
}

}  // namespace muster
