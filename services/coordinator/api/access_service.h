// AccessService over the table of tokens.
#pragma once

#include "proto/muster/v1/access.grpc.pb.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/api/token_table.h"

namespace muster {

class AccessService final : public v1::AccessService::Service {
 public:
  // Both arguments must outlive the service.
  AccessService(TokenTable* tokens, const Access* access) : tokens_(tokens), access_(access) {}

  grpc::Status CreateToken(grpc::ServerContext* context, const v1::CreateTokenRequest* request,
                           v1::CreateTokenResponse* response) override;
  grpc::Status ListTokens(grpc::ServerContext* context, const v1::ListTokensRequest* request,
                          v1::ListTokensResponse* response) override;
  grpc::Status RevokeToken(grpc::ServerContext* context, const v1::RevokeTokenRequest* request,
                           v1::AccessToken* response) override;

 private:
  absl::StatusOr<Caller> CheckAdmin(const grpc::ServerContext& context,
                                    absl::string_view method) const;

  TokenTable* const tokens_;
  const Access* const access_;
};

}  // namespace muster
