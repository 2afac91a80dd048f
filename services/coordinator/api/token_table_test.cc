#include "services/coordinator/api/token_table.h"

#include <glog/logging.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "lib/status/status.h"
#include "proto/muster/v1/store.pb.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/store/sqlite_store.h"

namespace muster::token_table_test {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class TokenTableTest : public ::testing::Test {
 protected:
  TokenTableTest() {
    folder_ = ::testing::TempDir() + "/tokens-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    Reopen();
  }
  void Reopen() {
    table_.reset();
    store_.reset();
    auto store = SqliteStore::Open(folder_ + "/coordinator.db");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto table = TokenTable::Open(store_.get());
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = *std::move(table);
  }
  static v1::CreateTokenRequest Wish(const std::string& holder, v1::TokenScope scope,
                                     int64_t seconds = 3600) {
    v1::CreateTokenRequest request;
    request.set_holder(holder);
    request.set_scope(scope);
    request.set_lifetime_seconds(seconds);
    return request;
  }

  std::string folder_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<TokenTable> table_;
};

TEST_F(TokenTableTest, FindsASecretUntilItExpiresEvenAfterARestart) {
  const auto made = table_->Create(Wish("ann", v1::TOKEN_SUBMIT), kNow);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->secret(), HasSubstr("muster." + made->token().id() + "."));

  Reopen();

  const auto found = table_->Find(made->secret(), kNow);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->holder(), "ann");
  EXPECT_EQ(found->scope(), v1::TOKEN_SUBMIT);
  EXPECT_TRUE(table_->Find(made->secret(), kNow + absl::Seconds(3599)).ok());
  EXPECT_EQ(ReasonOf(table_->Find(made->secret(), kNow + absl::Seconds(3600)).status()),
            "TOKEN_INVALID");
}

TEST_F(TokenTableTest, RejectsOtherSecrets) {
  const auto made = table_->Create(Wish("ann", v1::TOKEN_ADMIN), kNow);
  const auto other = table_->Create(Wish("bob", v1::TOKEN_READ), kNow);
  std::string swapped = made->secret();
  swapped.back() = swapped.back() == 'A' ? 'B' : 'A';
  const std::string mixed =
      "muster." + made->token().id() + other->secret().substr(other->secret().rfind('.'));
  for (const std::string& secret :
       {std::string(), std::string("muster"), made->token().id(), "muster." + made->token().id(),
        "muster." + made->token().id() + ".", swapped, mixed, made->secret() + "x",
        " " + made->secret(), made->secret().substr(7)}) {
    EXPECT_EQ(ReasonOf(table_->Find(secret, kNow).status()), "TOKEN_INVALID") << secret;
  }
}

TEST_F(TokenTableTest, ARevokedTokenStaysRevoked) {
  const auto made = table_->Create(Wish("ann", v1::TOKEN_READ), kNow);
  EXPECT_EQ(ReasonOf(table_->Revoke("t-00000000", kNow).status()), "TOKEN_NOT_FOUND");
  const auto revoked = table_->Revoke(made->token().id(), kNow);
  ASSERT_TRUE(revoked.ok()) << revoked.status();
  EXPECT_FALSE(table_->Find(made->secret(), kNow).ok());
  const auto again = table_->Revoke(made->token().id(), kNow + absl::Hours(1));
  EXPECT_EQ(again->revoke_time().seconds(), revoked->revoke_time().seconds());

  Reopen();

  EXPECT_FALSE(table_->Find(made->secret(), kNow).ok());
  ASSERT_EQ(table_->List().size(), 1);
  EXPECT_TRUE(table_->List()[0].has_revoke_time());
}

// The table lists ended tokens for a month. They must not count against the limit in this time.
TEST_F(TokenTableTest, EndedTokensDoNotBlockNewOnes) {
  const auto id = [](int i) { return absl::StrCat("t-", absl::Hex(i, absl::kZeroPad8)); };
  int next = 0;
  const auto import = [&]() -> absl::StatusOr<std::optional<v1::BackupRecord>> {
    v1::BackupRecord record;
    if (next > TokenTable::kTokensMax) return std::nullopt;
    if (next == 0) {
      record.mutable_header();
    } else {  // the second expired an hour ago; the fourth was revoked before that
      const absl::Time ends = next == 2 ? kNow - absl::Hours(1) : kNow + absl::Hours(1);
      v1::AccessToken token;
      token.set_id(id(next));
      *token.mutable_expire_time() = ToProto(ends);
      if (next == 4) *token.mutable_revoke_time() = ToProto(kNow - absl::Hours(2));
      record.mutable_token()->set_record(token.SerializeAsString());
    }
    ++next;
    return record;
  };
  ASSERT_TRUE(store_->Import(import).ok());
  Reopen();
  const auto ids = [&] {
    std::set<std::string> ids;
    for (const v1::AccessToken& token : table_->List()) ids.insert(token.id());
    return ids;
  };
  ASSERT_EQ(ids().size(), TokenTable::kTokensMax);

  for (const int forgotten : {4, 2}) {
    const auto made = table_->Create(Wish("ann", v1::TOKEN_READ), kNow);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_FALSE(ids().contains(id(forgotten)));
    EXPECT_EQ(ids().size(), TokenTable::kTokensMax);
  }
  EXPECT_EQ(ReasonOf(table_->Create(Wish("ann", v1::TOKEN_READ), kNow).status()), "TOO_MANY_TOKENS")
      << "all are valid";
}

// Collects the errors that are logged while it exists.
class ErrorLog : public google::LogSink {
 public:
  ErrorLog() { google::AddLogSink(this); }
  ~ErrorLog() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message, size_t bytes) override {
    if (severity == google::GLOG_ERROR) absl::StrAppend(&text, std::string(message, bytes), "\n");
  }

  std::string text;
};

TEST_F(TokenTableTest, ADamagedTokenOfABackupIsNamedAndLeftOut) {
  int next = 0;
  const auto import = [&]() -> absl::StatusOr<std::optional<v1::BackupRecord>> {
    v1::BackupRecord record;
    if (next == 2) return std::nullopt;
    if (next++ == 0) {
      record.mutable_header();
      return record;
    }
    v1::AccessToken token;
    token.set_id("t-0000000a");
    // The holder's length is beyond the end of the record.
    record.mutable_token()->set_record(token.SerializeAsString() + "\x12\x05" + "a");
    return record;
  };
  const ErrorLog log;

  ASSERT_TRUE(store_->Import(import).ok());

  EXPECT_THAT(log.text, HasSubstr("left out access token t-0000000a: its record does not parse"));
  EXPECT_THAT(log.text, HasSubstr("muster token create"));
  Reopen();
  EXPECT_TRUE(table_->List().empty());
}

TEST_F(TokenTableTest, TheDiskHasNoSecret) {
  const auto made = table_->Create(Wish("ann", v1::TOKEN_READ), kNow);
  table_.reset();
  store_.reset();  // writes the whole log into the file
  std::ifstream file(folder_ + "/coordinator.db", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(absl::StrContains(bytes, made->token().id()));
  EXPECT_FALSE(absl::StrContains(bytes, made->secret().substr(made->secret().rfind('.') + 1)));
}

TEST_F(TokenTableTest, ReportsAllFaultsOfARequest) {
  const absl::Status status =
      table_->Create(Wish("Ann; DROP TABLE tokens", v1::TOKEN_SCOPE_UNSPECIFIED, 1), kNow).status();
  EXPECT_EQ(ReasonOf(status), "INVALID_REQUEST");
  for (const char* field : {"holder", "scope", "lifetime_seconds"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  }
}

}  // namespace
}  // namespace muster::token_table_test
