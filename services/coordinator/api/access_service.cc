#include "services/coordinator/api/access_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "services/coordinator/api/call_gate.h"

namespace muster {

absl::StatusOr<Caller> AccessService::CheckAdmin(const grpc::ServerContext& context,
                                                 absl::string_view method) const {
  if (access_->open()) {
    return WithReason(
        absl::FailedPreconditionError(
            "this coordinator does not use tokens, and its traffic can be read on the "
            "way: start it with --tls=DIR (muster certs init) first"),
        "NO_TLS");
  }
  return access_->Check(context, method, Permission::kAdmin);
}

grpc::Status AccessService::CreateToken(grpc::ServerContext* context,
                                        const v1::CreateTokenRequest* request,
                                        v1::CreateTokenResponse* response) {
  const auto caller = CheckAdmin(*context, "CreateToken");
  if (!caller.ok()) return ToGrpc(caller.status());
  auto created = tokens_->Create(*request, absl::Now());
  access_->Audit(*caller, "CreateToken",
                 created.ok() ? absl::StrCat(created->token().id(), " ", request->holder())
                              : request->holder(),
                 created.status());
  return Answer(std::move(created), response);
}

grpc::Status AccessService::ListTokens(grpc::ServerContext* context, const v1::ListTokensRequest*,
                                       v1::ListTokensResponse* response) {
  const auto caller = CheckAdmin(*context, "ListTokens");
  if (!caller.ok()) return ToGrpc(caller.status());
  for (v1::AccessToken& token : tokens_->List()) *response->add_tokens() = std::move(token);
  return grpc::Status::OK;
}

grpc::Status AccessService::RevokeToken(grpc::ServerContext* context,
                                        const v1::RevokeTokenRequest* request,
                                        v1::AccessToken* response) {
  const auto caller = CheckAdmin(*context, "RevokeToken");
  if (!caller.ok()) return ToGrpc(caller.status());
  auto revoked = tokens_->Revoke(request->id(), absl::Now());
  access_->Audit(*caller, "RevokeToken", request->id(), revoked.status());
  return Answer(std::move(revoked), response);
}

}  // namespace muster
