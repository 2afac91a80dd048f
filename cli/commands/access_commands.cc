// Implements muster certs and token: the identities that may connect.

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/commands/session.h"
#include "google/protobuf/struct.pb.h"
#include "lib/file/replaced_file.h"
#include "lib/security/certificate.h"
#include "lib/security/tls_folder.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kDay = absl::Hours(24);

// Parses days ("90d") or one of absl's durations ("12h", "30m"). Returns INVALID_ARGUMENT unless it
// is finite and above zero.
absl::StatusOr<absl::Duration> ParseLifetime(const std::string& text) {
  absl::string_view number = text;
  double days = 0;
  absl::Duration lifetime;
  if (absl::ConsumeSuffix(&number, "d") && absl::SimpleAtod(number, &days)) {
    lifetime = days * kDay;
  } else if (!absl::ParseDuration(text, &lifetime)) {
    lifetime = absl::ZeroDuration();
  }
  if (lifetime > absl::ZeroDuration() && lifetime < absl::InfiniteDuration()) return lifetime;
  return absl::InvalidArgumentError(
      absl::StrCat("--lifetime: '", text, "' is not a duration; try 90d, 12h or 30m"));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot create folder ", path, ": ", error.message()));
}

// ---------------------------------------------------------------- certificates

struct InitOptions {
  std::string folder = "muster-ca";
  std::string name = "muster";
  std::string lifetime = "3650d";
};

std::string AuthorityKey(const std::string& folder) { return folder + "/ca.key"; }

absl::Status Init(const InitOptions& options) {
  ASSIGN_OR_RETURN(const absl::Duration lifetime, ParseLifetime(options.lifetime));
  const std::string certificate = TlsFolder{options.folder}.authority();
  const std::string key = AuthorityKey(options.folder);
  // Refuses to replace an authority, which ReplaceFile() below would do.
  for (const std::string& file : {certificate, key}) {
    if (fs::exists(file)) {
      return absl::AlreadyExistsError(absl::StrCat(
          file,
          " exists; a new authority would invalidate every certificate of the old one. Give "
          "another --dir, or remove it"));
    }
  }
  ASSIGN_OR_RETURN(const CertifiedKey authority,
                   MakeAuthority(options.name, absl::Now(), lifetime));
  RETURN_IF_ERROR(MakeFolder(options.folder));
  RETURN_IF_ERROR(ReplaceFile(key, authority.key, 0600));
  RETURN_IF_ERROR(ReplaceFile(certificate, authority.certificate, 0644));
  std::fprintf(
      stderr,
      "%s is the authority's secret key: it can issue a certificate for any identity. Keep it "
      "off the cluster.\n",
      key.c_str());
  std::printf("%s\n", options.folder.c_str());
  return absl::OkStatus();
}

struct IssueOptions {
  std::string role, name;
  std::string authority = "muster-ca";
  std::string folder;  // "": ROLE or ROLE-NAME in the authority's folder
  std::vector<std::string> hosts;
  std::string lifetime = "90d";
};

absl::Status Issue(const IssueOptions& options) {
  ASSIGN_OR_RETURN(const absl::Duration lifetime, ParseLifetime(options.lifetime));
  ASSIGN_OR_RETURN(const Role role, ParseRole(options.role));
  const bool is_person = role == Role::kAdmin || role == Role::kSubmitter;
  if (is_person && options.name.empty()) {
    return absl::InvalidArgumentError("this role needs a NAME after it");
  }
  // Reading the identity back finds a name that is not allowed.
  const Identity identity{.role = role, .name = options.name};
  RETURN_IF_ERROR(ParseIdentityUri(UriOf(identity)).status());
  CertifiedKey authority;
  ASSIGN_OR_RETURN(authority.certificate, ReadFile(TlsFolder{options.authority}.authority()));
  ASSIGN_OR_RETURN(authority.key, ReadFile(AuthorityKey(options.authority)));
  ASSIGN_OR_RETURN(
      const CertifiedKey issued,
      IssueCertificate(authority,
                       {.identity = identity, .hosts = options.hosts, .lifetime = lifetime},
                       absl::Now()));
  const TlsFolder folder{options.folder.empty()
                             ? absl::StrCat(options.authority, "/", options.role,
                                            options.name.empty() ? "" : "-", options.name)
                             : options.folder};
  RETURN_IF_ERROR(MakeFolder(folder.path));
  RETURN_IF_ERROR(ReplaceFile(folder.authority(), authority.certificate, 0644));
  RETURN_IF_ERROR(ReplaceFile(folder.key(), issued.key, 0600));
  RETURN_IF_ERROR(ReplaceFile(folder.certificate(), issued.certificate, 0644));
  std::printf("%s\n", folder.path.c_str());
  return absl::OkStatus();
}

absl::Status Show(const std::string& path, const Session& session) {
  const std::string file = fs::is_directory(path)
                               ? (TlsFolder{path}.has_certificate() ? TlsFolder{path}.certificate()
                                                                    : TlsFolder{path}.authority())
                               : path;
  ASSIGN_OR_RETURN(const std::string pem, ReadFile(file));
  const auto facts = ReadCertificate(pem);
  if (!facts.ok()) return Annotate(facts.status(), file);
  const std::string who = facts->is_authority    ? "an authority"
                          : facts->identity.ok() ? ToString(*facts->identity)
                                                 : std::string(facts->identity.status().message());
  const absl::Time now = absl::Now();
  const std::string left = facts->ends > now
                               ? absl::StrCat("in ", FormatAge(facts->ends - now))
                               : absl::StrCat(FormatAge(now - facts->ends), " ago: expired");
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["file"].set_string_value(file);
  fields["identity"].set_string_value(who);
  for (const std::string& host : facts->hosts) {
    fields["hosts"].mutable_list_value()->add_values()->set_string_value(host);
  }
  fields["begins"].set_string_value(FormatUtc(facts->begins));
  fields["ends"].set_string_value(FormatUtc(facts->ends));
  fields["issuer"].set_string_value(facts->issuer);
  fields["sha256"].set_string_value(facts->sha256);
  session.Print(
      message,
      absl::StrCat("File:     ", file, "\nIdentity: ", who,
                   "\nHosts:    ", facts->hosts.empty() ? "-" : absl::StrJoin(facts->hosts, ", "),
                   "\nBegins:   ", FormatUtc(facts->begins), "\nEnds:     ", FormatUtc(facts->ends),
                   " (", left, ")\nIssuer:   ", facts->issuer, "\nSHA-256:  ", facts->sha256, "\n"),
      absl::StrCat(who, "\n"));
  return absl::OkStatus();
}

// ---------------------------------------------------------------- tokens

struct TokenOptions {
  std::string holder;
  std::string scope = "submit";
  std::string lifetime = "30d";
};

constexpr std::array<const char*, 4> kScopes = {"?", "read", "submit", "admin"};

const char* ScopeName(v1::TokenScope scope) {
  return kScopes[scope >= v1::TOKEN_READ && scope <= v1::TOKEN_ADMIN ? scope : 0];
}

absl::Time TimeOf(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds());
}

absl::Status CreateToken(const TokenOptions& options, const Session& session) {
  ASSIGN_OR_RETURN(const absl::Duration lifetime, ParseLifetime(options.lifetime));
  v1::CreateTokenRequest request;
  request.set_holder(options.holder);
  for (int scope = v1::TOKEN_READ; scope <= v1::TOKEN_ADMIN; ++scope) {
    if (options.scope == kScopes[static_cast<size_t>(scope)]) {
      request.set_scope(static_cast<v1::TokenScope>(scope));
    }
  }
  request.set_lifetime_seconds(absl::ToInt64Seconds(lifetime));
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::CreateTokenResponse response, client.CreateToken(request));
  std::fprintf(stderr,
               "%s for %s, scope %s, until %s. It is shown only once; put it into a file that only "
               "its holder can read, for --token-file.\n",
               response.token().id().c_str(), response.token().holder().c_str(),
               ScopeName(response.token().scope()),
               FormatUtc(TimeOf(response.token().expire_time())).c_str());
  session.Print(response, absl::StrCat(response.secret(), "\n"),
                absl::StrCat(response.token().id(), "\n"));
  return absl::OkStatus();
}

absl::Status ListTokens(const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::ListTokensResponse response, client.ListTokens());
  Table table({"ID", "HOLDER", "SCOPE", "CREATED", "ENDS", "STATE"});
  std::string names;
  const absl::Time now = absl::Now();
  for (const v1::AccessToken& token : response.tokens()) {
    table.Add({token.id(), token.holder(), ScopeName(token.scope()),
               FormatUtc(TimeOf(token.create_time())), FormatUtc(TimeOf(token.expire_time())),
               token.has_revoke_time()              ? "revoked"
               : TimeOf(token.expire_time()) <= now ? "ended"
                                                    : "valid"});
    absl::StrAppend(&names, token.id(), "\n");
  }
  session.Print(response, table.ToString(), names);
  return absl::OkStatus();
}

absl::Status RevokeToken(const std::string& id, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::AccessToken token, client.RevokeToken(id));
  session.Print(token, absl::StrCat(token.id(), " of ", token.holder(), " is revoked\n"),
                absl::StrCat(token.id(), "\n"));
  return absl::OkStatus();
}

void AddCerts(Command program, Session& session) {
  Command certs = program.AddCommand("certs", "Certificates for a site without an authority",
                                     "muster certs init && muster certs issue worker");
  certs.RequireCommand();

  auto init = std::make_shared<InitOptions>();
  Command command = certs.AddCommand("init", "Create an authority: ca.crt and ca.key",
                                     "muster certs init --dir ~/muster-ca");
  command.AddOption("--dir", init->folder, "Folder to create; default ./muster-ca");
  command.AddOption("--name", init->name, "Its name; default muster");
  command.AddOption("--lifetime", init->lifetime, "How long it is valid; default 3650d");
  command.SetAction([init, &session] { session.Fail(Init(*init)); });

  auto issue = std::make_shared<IssueOptions>();
  command =
      certs.AddCommand("issue", "Create tls.crt, tls.key and ca.crt for --tls",
                       "muster certs issue coordinator --host muster.example.org --host 10.0.0.7\n"
                       "  muster certs issue worker worker-3\n"
                       "  muster certs issue admin ann --lifetime 365d");
  command.AddOption("ROLE", issue->role, "coordinator, ps, worker, admin or submitter").Required();
  command.AddOption("NAME", issue->name, "Of a person, or of a member that alone may use it");
  command.AddOption("--ca", issue->authority, "The authority's folder; default ./muster-ca");
  command.AddOption("--out", issue->folder, "Default: ROLE-NAME in the authority's folder");
  command.AddOption("--host", issue->hosts, "Name or address of a coordinator; may be repeated")
      .OneValueEach();
  command.AddOption("--lifetime", issue->lifetime, "How long it is valid; default 90d");
  command.SetAction([issue, &session] { session.Fail(Issue(*issue)); });

  auto path = std::make_shared<std::string>();
  command = certs.AddCommand("show", "Identity and validity of a certificate",
                             "muster certs show muster-ca/coordinator");
  command.AddOption("PATH", *path, "Certificate, or the folder with it").Required();
  command.SetAction([path, &session] { session.Fail(Show(*path, session)); });
}

void AddTokens(Command program, Session& session) {
  Command tokens = program.AddCommand("token", "Tokens of people and their programs",
                                      "muster token create ann --scope submit > ann.token");
  tokens.RequireCommand();

  auto options = std::make_shared<TokenOptions>();
  Command command =
      tokens.AddCommand("create", "Create one; needs an admin's certificate or token",
                        "muster token create ci --scope submit --lifetime 90d > ci.token");
  command.AddOption("HOLDER", options->holder, "The person or program that it is for").Required();
  command.AddOption("--scope", options->scope, "read, submit or admin; default submit")
      .OneOf({"read", "submit", "admin"});
  command.AddOption("--lifetime", options->lifetime,
                    "How long it is valid; default 30d, at most 366d");
  command.SetAction([options, &session] { session.Fail(CreateToken(*options, session)); });

  tokens.AddCommand("list", "All, newest first", "muster token list").SetAction([&session] {
    session.Fail(ListTokens(session));
  });

  auto id = std::make_shared<std::string>();
  command = tokens.AddCommand("revoke", "Revoke one", "muster token revoke t-4f2a91c0");
  command.AddOption("ID", *id, "As muster token list shows it").Required();
  command.SetAction([id, &session] { session.Fail(RevokeToken(*id, session)); });
}

}  // namespace

void AddAccessCommands(Command program, Session& session) {
  AddCerts(program, session);
  AddTokens(program, session);
}

}  // namespace muster::cli
