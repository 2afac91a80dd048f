#include "services/coordinator/store/sqlite_store.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lib/checkpoint/folder.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/store/sqlite_statement.h"
#include "services/coordinator/store/store_records.h"

namespace muster {
namespace {

constexpr char kSqliteSchema[] = R"sql(
  CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
  INSERT INTO counters VALUES ('term', 0), ('jobs', 0);
  CREATE TABLE jobs(number INTEGER PRIMARY KEY, record BLOB NOT NULL, restore TEXT NOT NULL,
                    first_step INTEGER NOT NULL, graph BLOB NOT NULL);
  CREATE TABLE events(job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, revision INTEGER NOT NULL,
                      event BLOB NOT NULL, PRIMARY KEY (job, revision)) WITHOUT ROWID;
  CREATE TABLE plans(job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, generation INTEGER NOT NULL,
                     plan BLOB NOT NULL, PRIMARY KEY (job, generation));
  CREATE TABLE checkpoints(job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, step INTEGER NOT NULL,
                           record BLOB NOT NULL, PRIMARY KEY (job, step)) WITHOUT ROWID;
  CREATE TABLE requests(id TEXT PRIMARY KEY, fingerprint BLOB NOT NULL,
                        job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE) WITHOUT ROWID;
  CREATE INDEX requests_by_job ON requests(job);
)sql";

// Upgrade from schema 1, in which every model came from the zoo.
constexpr char kGraphColumn[] = "ALTER TABLE jobs ADD COLUMN graph BLOB NOT NULL DEFAULT x''";

// Upgrade from schema 2, which had no cluster id and no seats.
constexpr char kIdentityTables[] = R"sql(
  CREATE TABLE cluster(id TEXT NOT NULL);
  CREATE TABLE seats(member TEXT PRIMARY KEY, ordinal INTEGER NOT NULL) WITHOUT ROWID;
)sql";

// Upgrade from schema 3, which had no access tokens.
constexpr char kTokenTable[] =
    "CREATE TABLE tokens(id TEXT PRIMARY KEY, record BLOB NOT NULL, hash BLOB NOT NULL) WITHOUT "
    "ROWID";

// Locks the store against other processes. The lock is a separate file, because closing any
// descriptor of the database file would drop SQLite's own POSIX locks on it.
absl::StatusOr<int> Lock(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    return WithReason(absl::PermissionDeniedError(absl::StrCat(path, ": open: ", strerror(errno))),
                      "STORE_UNWRITABLE");
  }
  if (flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  const int error = errno;
  close(file);
  return WithReason(absl::UnavailableError(absl::StrCat(
                        path, error == EWOULDBLOCK ? ": another coordinator uses this state folder"
                                                   : absl::StrCat(": ", strerror(error)))),
                    "STORE_LOCKED");
}

// The files of a SQLite database; the database file itself is first.
constexpr const char* kSuffixes[] = {"", "-wal", "-shm"};

// The path of the store that Replace() fills. If it exists and `path` does not, a restore was cut
// off.
std::string RestoringOf(const std::string& path) { return path + ".restoring"; }

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Renames a file; OK if it does not exist.
absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return WithReason(absl::PermissionDeniedError(
                        absl::StrCat(from, ": cannot be renamed to ", to, ": ", strerror(errno))),
                    "STORE_UNWRITABLE");
}

absl::Status RemoveDatabase(const std::string& path) {
  for (const char* suffix : kSuffixes) {
    const std::string file = path + suffix;
    if (unlink(file.c_str()) == 0 || errno == ENOENT) continue;
    return WithReason(
        absl::PermissionDeniedError(absl::StrCat(file, ": cannot be removed: ", strerror(errno))),
        "STORE_UNWRITABLE");
  }
  return absl::OkStatus();
}

// Renames the database file first. Without it, Open() does not take the remaining files for a
// store.
absl::Status PutAside(const std::string& path) {
  int64_t now = absl::ToUnixSeconds(absl::Now());
  std::string kept;
  do {
    kept = absl::StrCat(path, ".before-restore-", now++);
  } while (FileExists(kept));
  const bool was_there = FileExists(path);
  for (const char* suffix : kSuffixes) {
    RETURN_IF_ERROR(Rename(path + suffix, kept + suffix));
  }
  if (was_there) LOG(INFO) << "the previous store is kept as " << kept;
  return SyncFolder(ParentOf(path));
}

absl::Status InsertEvent(sqlite3* database, uint64_t job, const v1::JobEvent& event) {
  return Execute(database, "INSERT INTO events VALUES (?, ?, ?)", job, event.revision(), event);
}

absl::StatusOr<int64_t> RaiseCounter(sqlite3* database, const std::string& name) {
  Statement raise(database, "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value",
                  name);
  ASSIGN_OR_RETURN(const bool found, raise.Step());
  if (!found) return Corrupt("a counter", "is missing");
  const int64_t value = raise.Integer(0);
  RETURN_IF_ERROR(raise.Run());
  return value;
}

absl::Status RaiseCounterTo(sqlite3* database, const std::string& name, uint64_t least) {
  return Execute(database, "UPDATE counters SET value = max(value, ?) WHERE name = ?", least, name);
}

constexpr char kCheckpointsOf[] = "SELECT record FROM checkpoints WHERE job = ? ORDER BY step";

// All jobs by number, as JobIn() reads them.
constexpr char kAllJobs[] =
    "SELECT number, jobs.record, restore, first_step, graph, id, fingerprint,"
    " (SELECT plan FROM plans WHERE job = number ORDER BY generation DESC LIMIT 1) "
    "FROM jobs LEFT JOIN requests ON job = number ORDER BY number";

// Returns the job of a row, without its events and checkpoints.
v1::BackupJob JobIn(const Statement& row) {
  v1::BackupJob job;
  job.set_number(row.Integer(0));
  job.set_record(row.Bytes(1));
  job.mutable_origin()->set_restore(row.Bytes(2));
  job.mutable_origin()->set_first_step(row.Integer(3));
  job.set_graph(row.Bytes(4));
  job.mutable_origin()->set_request_id(row.Bytes(5));
  job.set_fingerprint(row.Bytes(6));
  job.set_plan(row.Bytes(7));
  return job;
}

absl::Status TakeSeat(sqlite3* database, const Store::Seat& seat) {
  RETURN_IF_ERROR(
      Execute(database, "INSERT OR REPLACE INTO seats VALUES (?, ?)", seat.member, seat.ordinal));
  return Execute(database,
                 "DELETE FROM seats WHERE ordinal <= "
                 "(SELECT ordinal FROM seats ORDER BY ordinal DESC LIMIT 1 OFFSET ?)",
                 limits::kMembersRememberedMax);
}

absl::Status InsertJob(sqlite3* database, const v1::BackupJob& job) {
  const uint64_t number = job.number();
  RETURN_IF_ERROR(Execute(database, "INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", number,
                          Blob{job.record()}, job.origin().restore(), job.origin().first_step(),
                          Blob{job.graph()}));
  for (const auto& event : RowsThatParse<v1::JobEvent>(number, job.events())) {
    RETURN_IF_ERROR(InsertEvent(database, number, event));
  }
  if (!job.plan().empty()) {
    // A damaged plan is stored with the record's generation, so that the job stays damaged.
    v1::Job record;
    v1::JobPlan plan;
    const int64_t generation = plan.ParseFromString(job.plan())       ? plan.generation()
                               : record.ParseFromString(job.record()) ? record.generation()
                                                                      : 0;
    RETURN_IF_ERROR(Execute(database, "INSERT INTO plans VALUES (?, ?, ?)", number, generation,
                            Blob{job.plan()}));
  }
  for (const auto& checkpoint : RowsThatParse<v1::Checkpoint>(number, job.checkpoints())) {
    RETURN_IF_ERROR(Execute(database, "INSERT INTO checkpoints VALUES (?, ?, ?)", number,
                            checkpoint.step(), checkpoint));
  }
  if (job.origin().request_id().empty()) return absl::OkStatus();
  return Execute(database, "INSERT INTO requests VALUES (?, ?, ?)", job.origin().request_id(),
                 Blob{job.fingerprint()}, number);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> SqliteStore::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const int lock_file, Lock(path + ".lock"));
  const std::string restoring = RestoringOf(path);
  if (FileExists(restoring)) {
    if (!FileExists(path)) {
      close(lock_file);
      return WithReason(
          absl::DataLossError(absl::StrCat(path,
                                           ": a restore of a backup into this store has not ended: "
                                           "repeat it, or remove ",
                                           restoring, " to start without any job")),
          "STORE_CORRUPT");
    }
    RemoveDatabase(restoring).IgnoreError();  // Replace() died before it touched the old store
  }
  return OpenLocked(path, lock_file);
}

absl::Status SqliteStore::Replace(const std::string& path,
                                  const std::function<absl::Status(Store&)>& fill) {
  ASSIGN_OR_RETURN(const int lock_file, Lock(path + ".lock"));
  const absl::Cleanup unlock = [lock_file] { close(lock_file); };
  const std::string restoring = RestoringOf(path);
  RETURN_IF_ERROR(RemoveDatabase(restoring));
  absl::Status filled;
  {
    auto store = OpenLocked(restoring, fcntl(lock_file, F_DUPFD_CLOEXEC, 0));
    filled = store.status();
    if (filled.ok()) filled = fill(**store);
    if (filled.ok()) filled = (*store)->Settle();
  }
  if (!filled.ok()) {
    // If there was no store, the unfinished one stays, so that Open() reports the cut-off restore.
    if (FileExists(path)) RemoveDatabase(restoring).IgnoreError();
    return filled;
  }
  // Sync the new store's name before the old one is renamed.
  RETURN_IF_ERROR(SyncFolder(ParentOf(path)));
  RETURN_IF_ERROR(PutAside(path));
  RETURN_IF_ERROR(Rename(restoring, path));
  return SyncFolder(ParentOf(path));
}

// The user version is stored big-endian at byte 60: "Database File Format", sqlite.org, section
// 1.3.
int64_t SqliteStore::SchemaIn(const std::string& path) {
  constexpr int kUserVersionAt = 60;
  std::array<unsigned char, kUserVersionAt + 4> header{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(header.data()), header.size())) return 0;
  int64_t version = 0;
  for (int i = 0; i < 4; ++i) version = version << 8 | header[kUserVersionAt + i];
  return version;
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::OpenLocked(const std::string& path,
                                                                     int lock_file) {
  // The file contains plans and their session tokens, so only the owner may read it. SQLite gives
  // its other files the same mode.
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file >= 0) {
    fchmod(file, S_IRUSR | S_IWUSR);
    close(file);
  }
  sqlite3* database = nullptr;
  const int opened =
      sqlite3_open_v2(path.c_str(), &database,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  CHECK(database != nullptr) << "out of memory";
  std::unique_ptr<SqliteStore> store(new SqliteStore(database, lock_file));
  absl::Status status = opened == SQLITE_OK ? store->Initialize(path) : SqlError(database);
  if (!status.ok()) return Annotate(status, path);
  return store;
}

SqliteStore::~SqliteStore() {
  CHECK_EQ(sqlite3_close(database_), SQLITE_OK);
  close(lock_file_);
}

absl::Status SqliteStore::Initialize(const std::string& path) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(ExecuteAll(database_,
                             "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                             "PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 2000"));
  {
    Statement check(database_, "PRAGMA quick_check(1)");
    ASSIGN_OR_RETURN(const bool answered, check.Step());
    if (!answered || check.Bytes(0) != "ok") {
      return WithReason(absl::DataLossError(absl::StrCat("damaged: ", check.Bytes(0))),
                        "STORE_CORRUPT");
    }
  }
  int64_t version = 0;
  {
    Statement read(database_, "PRAGMA user_version");
    RETURN_IF_ERROR(read.Run());
    version = read.Integer(0);
  }
  RETURN_IF_ERROR(CheckSchema(version, kSchemaVersion));
  if (version == 0) LOG(INFO) << "new store " << path;
  if (version > 0 && version < kSchemaVersion) {
    LOG(INFO) << path << ": upgrading its schema from version " << version << " to "
              << kSchemaVersion << "; an older Muster can no longer open it";
  }
  return InTransaction([&]() -> absl::Status {
    if (version == 0) RETURN_IF_ERROR(ExecuteAll(database_, kSqliteSchema));
    if (version == 1) RETURN_IF_ERROR(ExecuteAll(database_, kGraphColumn));
    if (version < 3) {
      RETURN_IF_ERROR(ExecuteAll(database_, kIdentityTables));
      RETURN_IF_ERROR(Execute(database_, "INSERT INTO cluster VALUES (?)", NewClusterId()));
    }
    if (version < kTokensSince) RETURN_IF_ERROR(ExecuteAll(database_, kTokenTable));
    if (version < kSchemaVersion) {
      RETURN_IF_ERROR(
          ExecuteAll(database_, absl::StrCat("PRAGMA user_version = ", kSchemaVersion).c_str()));
    }
    ASSIGN_OR_RETURN(term_, RaiseCounter(database_, "term"));
    Statement identity(database_, "SELECT id FROM cluster");
    ASSIGN_OR_RETURN(const bool found, identity.Step());
    if (!found) return Corrupt("the cluster's id", "is missing");
    cluster_ = identity.Bytes(0);
    return absl::OkStatus();
  });
}

absl::Status SqliteStore::Settle() {
  absl::MutexLock lock(&mu_);
  Statement settle(database_, "PRAGMA wal_checkpoint(TRUNCATE)");
  ASSIGN_OR_RETURN(const bool answered, settle.Step());
  if (answered && settle.Integer(0) == 0) return absl::OkStatus();
  return WithReason(absl::InternalError("store: another connection uses its file"), "STORE_FAILED");
}

absl::Status SqliteStore::InTransaction(const std::function<absl::Status()>& body) {
  const absl::Duration start = SteadyNow();
  RETURN_IF_ERROR(ExecuteAll(database_, "BEGIN IMMEDIATE"));
  absl::Status status = body();
  if (status.ok()) status = ExecuteAll(database_, "COMMIT");
  if (!status.ok() && sqlite3_get_autocommit(database_) == 0) {
    ExecuteAll(database_, "ROLLBACK").IgnoreError();
  }
  if (observe_commit_) observe_commit_(SteadyNow() - start);
  return status;
}

absl::StatusOr<v1::Job> SqliteStore::AddJob(Submission submission) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(InTransaction([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const int64_t number, RaiseCounter(database_, "jobs"));
    return InsertJob(database_, NewJob(number, submission));
  }));
  return std::move(submission.record);
}

absl::StatusOr<std::optional<Store::Request>> SqliteStore::FindRequest(
    const std::string& request_id) const {
  absl::MutexLock lock(&mu_);
  Statement find(database_,
                 "SELECT fingerprint, record FROM requests JOIN jobs ON job = number WHERE id = ?",
                 request_id);
  ASSIGN_OR_RETURN(const bool found, find.Step());
  if (!found) return std::nullopt;
  ASSIGN_OR_RETURN(const auto record,
                   Parsed<v1::Job>(absl::StrCat("the job of request ", request_id), find.Bytes(1)));
  return Request{find.Bytes(0), JobIdOf(record.name())};
}

absl::Status SqliteStore::Commit(const Change& change) {
  absl::MutexLock lock(&mu_);
  return InTransaction([&]() -> absl::Status {
    if (change.seat != nullptr) RETURN_IF_ERROR(TakeSeat(database_, *change.seat));
    if (change.record == nullptr) return absl::OkStatus();
    const v1::Job& record = *change.record;
    const uint64_t job = record.number();
    RETURN_IF_ERROR(Execute(database_, "UPDATE jobs SET record = ? WHERE number = ?", record, job));
    CHECK_EQ(sqlite3_changes(database_), 1) << record.name() << " is not in the store";
    for (const v1::JobEvent& event : change.events) {
      RETURN_IF_ERROR(InsertEvent(database_, job, event));
    }
    if (!change.events.empty()) {
      RETURN_IF_ERROR(Execute(database_, "DELETE FROM events WHERE job = ? AND revision <= ?", job,
                              static_cast<int64_t>(record.revision()) - limits::kJobEventsKeptMax));
    }
    if (change.plan != nullptr || record.has_end_time()) {
      RETURN_IF_ERROR(Execute(database_, "DELETE FROM plans WHERE job = ?", job));
    }
    if (change.plan != nullptr && !record.has_end_time()) {
      RETURN_IF_ERROR(Execute(database_, "INSERT INTO plans VALUES (?, ?, ?)", job,
                              change.plan->generation(), *change.plan));
    }
    if (change.checkpoint != nullptr) {
      RETURN_IF_ERROR(Execute(database_, "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", job,
                              change.checkpoint->step(), *change.checkpoint));
    }
    for (int64_t step : change.checkpoints_removed) {
      RETURN_IF_ERROR(
          Execute(database_, "DELETE FROM checkpoints WHERE job = ? AND step = ?", job, step));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> SqliteStore::PassOverNumbers(uint64_t last) {
  absl::MutexLock lock(&mu_);
  {
    Statement look(database_, "SELECT 1 FROM counters WHERE name = 'jobs' AND value < ?", last);
    ASSIGN_OR_RETURN(const bool lower, look.Step());
    if (!lower) return false;
  }
  RETURN_IF_ERROR(InTransaction([&] { return RaiseCounterTo(database_, "jobs", last); }));
  return true;
}

absl::Status SqliteStore::DeleteJob(uint64_t number) {
  absl::MutexLock lock(&mu_);
  return InTransaction(
      [&] { return Execute(database_, "DELETE FROM jobs WHERE number = ?", number); });
}

absl::StatusOr<std::vector<StoredJob>> SqliteStore::LoadJobs() const {
  absl::MutexLock lock(&mu_);
  return AllRows<StoredJob>({database_, kAllJobs},
                            [](const Statement& row) { return ParseJob(JobIn(row)); });
}

absl::StatusOr<std::vector<Store::Seat>> SqliteStore::Seats() const {
  absl::MutexLock lock(&mu_);
  return AllRows<Seat>({database_, "SELECT member, ordinal FROM seats"}, [](const Statement& row) {
    return Seat{.member = row.Bytes(0), .ordinal = static_cast<uint64_t>(row.Integer(1))};
  });
}

absl::Status SqliteStore::PutToken(const Token& token) {
  absl::MutexLock lock(&mu_);
  return InTransaction([&] {
    return Execute(database_, "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?)", token.record.id(),
                   token.record, Blob{token.hash});
  });
}

absl::Status SqliteStore::DeleteToken(const std::string& id) {
  absl::MutexLock lock(&mu_);
  return InTransaction([&] { return Execute(database_, "DELETE FROM tokens WHERE id = ?", id); });
}

absl::StatusOr<std::vector<Store::Token>> SqliteStore::Tokens() const {
  absl::MutexLock lock(&mu_);
  return AllRows<Token>({database_, "SELECT id, record, hash FROM tokens"},
                        [](const Statement& row) -> absl::StatusOr<Token> {
                          ASSIGN_OR_RETURN(auto record, Parsed<v1::AccessToken>(
                                                            "token " + row.Bytes(0), row.Bytes(1)));
                          return Token{.record = std::move(record), .hash = row.Bytes(2)};
                        });
}

absl::StatusOr<std::vector<v1::JobEvent>> SqliteStore::Events(uint64_t number,
                                                              uint64_t after_revision,
                                                              int max) const {
  absl::MutexLock lock(&mu_);
  return AllRows<v1::JobEvent>(
      {database_,
       "SELECT event FROM events WHERE job = ? AND revision > ? ORDER BY revision LIMIT ?", number,
       after_revision, max},
      [&](const Statement& row) {
        return Parsed<v1::JobEvent>(absl::StrCat("an event of job ", number), row.Bytes(0));
      });
}

absl::StatusOr<std::vector<v1::Checkpoint>> SqliteStore::Checkpoints(uint64_t number) const {
  absl::MutexLock lock(&mu_);
  return AllRows<v1::Checkpoint>({database_, kCheckpointsOf, number}, [&](const Statement& row) {
    return Parsed<v1::Checkpoint>(absl::StrCat("a checkpoint of job ", number), row.Bytes(0));
  });
}

// Reads over a second connection. Its one transaction sees one state of the file while other
// connections write.
absl::Status SqliteStore::Export(
    const std::function<absl::Status(const v1::BackupRecord&)>& take) const {
  sqlite3* reader = nullptr;
  const int opened = sqlite3_open_v2(sqlite3_db_filename(database_, "main"), &reader,
                                     SQLITE_OPEN_READONLY | SQLITE_OPEN_FULLMUTEX, nullptr);
  CHECK(reader != nullptr) << "out of memory";
  const absl::Cleanup close = [reader] { sqlite3_close(reader); };
  if (opened != SQLITE_OK) return SqlError(reader);
  RETURN_IF_ERROR(ExecuteAll(reader, "PRAGMA busy_timeout = 2000; BEGIN"));
  v1::BackupRecord first;
  v1::BackupHeader& header = *first.mutable_header();
  header.set_cluster(cluster_);
  Statement counters(reader,
                     "SELECT (SELECT value FROM counters WHERE name = 'term'),"
                     " (SELECT value FROM counters WHERE name = 'jobs')");
  RETURN_IF_ERROR(counters.Run());
  header.set_term(counters.Integer(0));
  header.set_jobs(counters.Integer(1));
  RETURN_IF_ERROR(take(first));
  Statement jobs(reader, kAllJobs);
  while (true) {
    ASSIGN_OR_RETURN(const bool row, jobs.Step());
    if (!row) break;
    v1::BackupRecord record;
    v1::BackupJob& job = *record.mutable_job();
    job = JobIn(jobs);
    const std::pair<const char*, google::protobuf::RepeatedPtrField<std::string>*> parts[] = {
        {"SELECT event FROM events WHERE job = ? ORDER BY revision", job.mutable_events()},
        {kCheckpointsOf, job.mutable_checkpoints()}};
    for (const auto& [sql, values] : parts) {
      ASSIGN_OR_RETURN(const auto rows,
                       AllRows<std::string>({reader, sql, job.number()},
                                            [](const Statement& row) { return row.Bytes(0); }));
      values->Assign(rows.begin(), rows.end());
    }
    RETURN_IF_ERROR(take(record));
  }
  Statement tokens(reader, "SELECT record, hash FROM tokens ORDER BY id");
  while (true) {
    ASSIGN_OR_RETURN(const bool row, tokens.Step());
    if (!row) return absl::OkStatus();
    v1::BackupRecord record;
    record.mutable_token()->set_record(tokens.Bytes(0));
    record.mutable_token()->set_hash(tokens.Bytes(1));
    RETURN_IF_ERROR(take(record));
  }
}

absl::Status SqliteStore::Import(
    const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next) {
  absl::MutexLock lock(&mu_);
  return InTransaction([&]() -> absl::Status {
    {
      Statement used(database_, "SELECT 1 FROM jobs UNION ALL SELECT 1 FROM tokens");
      ASSIGN_OR_RETURN(const bool found, used.Step());
      if (found) return StoreNotEmpty();
    }
    RETURN_IF_ERROR(Execute(database_, "UPDATE cluster SET id = ?", NewClusterId()));
    return ForEachRecord(
        next,
        [&](const v1::BackupHeader& header) -> absl::Status {
          RETURN_IF_ERROR(
              RaiseCounterTo(database_, "term", std::max(term_, header.term()) + kTermsPassedOver));
          return RaiseCounterTo(database_, "jobs", header.jobs());
        },
        [&](const v1::BackupJob& job) { return InsertJob(database_, job); },
        [&](const std::string& id, const v1::StoredToken& token) {
          return Execute(database_, "INSERT INTO tokens VALUES (?, ?, ?)", id, Blob{token.record()},
                         Blob{token.hash()});
        });
  });
}

}  // namespace muster
