// Every limit that a user or an operator can meet, each with its reason. A value beyond one is
// refused with an error that names the limit, the value and its cause. Limits that only our own
// code can meet (a buffer, a retry) are declared where they are used.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace muster::limits {

// Control plane.
inline constexpr int64_t kControlMessageBytesMax =
    64 << 20;                                       // a plan with 100,000 chunks is about 4 MB
inline constexpr int64_t kSliceBytesMax = 2 << 20;  // gRPC's sweet spot; its default limit is 4 MiB
inline constexpr int64_t kReadChunkBytesMax = 1 << 20;  // ReadCheckpoint
inline constexpr int kAttachedMembersMax = 4096;        // one stream and a few KB each
inline constexpr int64_t kRequestBytesMax =
    4 << 20;  // what the coordinator takes in one message; a slice is 2 MiB, a report less
inline constexpr int kServerThreadsMax = 1024;  // of the coordinator, for calls that block:
                                                // creates, downloads, saves, shards, short ones
inline constexpr int kStreamsOfConnectionMax = 128;  // and one for each shard that a ps may have

// The coordinator's port, for clients that have not authenticated.
inline constexpr int64_t kResidentBytesMax =
    768 << 20;  // of the coordinator; beyond it only who has not begun many calls begins another
inline constexpr int kConnectionsMax = kAttachedMembersMax + 1024;
inline constexpr int kHealthConnectionsMax =
    160;  // of --health, where a probe has one for a moment; 1,024 descriptors are enough for them
inline constexpr absl::Duration kConnectionAgeMax =
    absl::Hours(1);  // --connection_age: then a client with a certificate proves anew who it is
inline constexpr double kConnectionsPerSecond = 200;  // 4,096 members are back in 17 s
inline constexpr int kCallsOpenMax = 16384;           // of all connections; some 10 KB each
inline constexpr int kCallsOfNewConnectionMax = 128;  // that it may begin at once
inline constexpr double kCallsOfConnectionPerSecond =
    50;  // beyond those that the server ends: so fast two slow cores clear them away, of 64 clients
inline constexpr double kCallsEndedPerSecond =
    4000;  // likewise; of all connections, beyond which what ends counts as if it were abandoned

// The calls themselves.
inline constexpr int kCreateCallsMax = 64;
inline constexpr int kModelImportsMax = 2;                // at once; each holds its model's values
inline constexpr int64_t kDataCheckBytesMax = 256 << 20;  // a larger one only workers check
inline constexpr int kDownloadCallsMax = 32;              // a disk serves no more at once
inline constexpr int kSaveCallsMax = 64;
inline constexpr int kShardCallsMax = 256;   // WriteShard that is being read; as many ReadShard
inline constexpr int kWatchCallsMax = 1024;  // these hold no thread
inline constexpr absl::Duration kFirstMessageMax =
    absl::Seconds(10);  // until a stream says what it is about
inline constexpr absl::Duration kStreamStallMax =
    absl::Minutes(1);  // without a message that its client sends, or reads
inline constexpr absl::Duration kAttachBackoffMax =
    absl::Seconds(2);  // of a member, between two attempts to reach the coordinator
inline constexpr int kMembersRememberedMax =
    4 *
    kAttachedMembersMax;  // names, so that a process that was replaced is known when it comes back
inline constexpr int kPageSizeDefault = 50;
inline constexpr int kPageSizeMax = 500;
inline constexpr int kRequestIdBytesMax = 64;
inline constexpr int kJobsQueuedMax = 10000;  // one row each; a runaway script stops here
inline constexpr int64_t kEndedJobsKept =
    10000;  // --ended_jobs_keep: some KB each, and a start of the coordinator looks at all of them
inline constexpr absl::Duration kEndedJobsKeptFor = absl::Hours(30 * 24);  // --ended_jobs_ttl
inline constexpr int kJobEventsKeptMax = 1000;  // of one job; a watcher is told how many are gone
inline constexpr int kWatchEventsMax = 500;     // in one message of WatchJob
inline constexpr int kWatchedJobsMax = 500;     // in one message of WatchJobs
inline constexpr int64_t kSelectorBytesMax = 4096;
inline constexpr int kMetricPointsDefault = 1000;  // of a series: a screen's width
inline constexpr int kMetricPointsMax = 10000;
inline constexpr int64_t kMemberLogBytesMax = 256 << 10;  // that a member keeps: some 2,000 lines
inline constexpr absl::Duration kMemberLogWaitMax =
    absl::Seconds(5);  // for a member's answer: a thread of the server is held meanwhile
inline constexpr int kMemberLogCallsMax = 32;
inline constexpr int kTraceStepsMax = 1000;
inline constexpr absl::Duration kTraceTimeoutDefault = absl::Minutes(1);
inline constexpr absl::Duration kTraceTimeoutMax = absl::Minutes(10);
inline constexpr absl::Duration kTraceTellMax =
    absl::Seconds(10);  // for a member to begin to record, and to tell what it has recorded
inline constexpr int64_t kTracedEventsMax =
    1 << 18;  // of all members of a job: some 10 MB on the wire, 60 MB in the coordinator
inline constexpr int64_t kTracedEventsOfMemberMax = 1 << 16;  // 6 MB in the member
inline constexpr int kTracesMax = 4;                          // at once, of different jobs
inline constexpr int kChangesQueuedMax =
    4096;  // coordinator: for its disk; beyond it reports only renew leases, and are repeated
inline constexpr absl::Duration kChangeWaitMax =
    absl::Seconds(10);  // of a user, for the store's disk; the CLI's calls have 15 s
inline constexpr int kStepRecordsHeldMax =
    65536;  // worker: about 5 MB while the coordinator is away
inline constexpr int kStepRecordsReportedMax = 16384;  // in one report: below kRequestBytesMax
inline constexpr int kLinksReportedMax =
    128;  // of a worker; the coordinator keeps some 300 bytes of each

// Jobs.
inline constexpr int64_t kGraphBytesMax =
    kControlMessageBytesMax / 2;  // a plan's 2^20 chunks take 25 MB more, its job file 1 MiB
inline constexpr int64_t kSpecBytesMax = 1
                                         << 20;  // the store keeps it, and every watcher is sent it
inline constexpr int kNameBytesMax = 40;         // a Kubernetes label holds 63: name + "-" + number
inline constexpr int64_t kLabelsMax = 64;        // of one job
inline constexpr int64_t kAnnotationBytesMax = 64 << 10;
inline constexpr int64_t kBatchSizeMax = 1 << 20;
inline constexpr int64_t kStepsMax = 1'000'000'000'000;  // int64 sample positions must not overflow
inline constexpr int kWorkersMax = 1024;  // rank is 16 bits on the wire with room to spare
inline constexpr int kPsMax = 1024;
inline constexpr int kShardThreadsMax = 256;  // per ps
inline constexpr int64_t kChunkBytesMin = 1 << 10;
inline constexpr int64_t kChunkBytesDefault = 4 << 20;
inline constexpr int64_t kChunkBytesMax = 64 << 20;  // larger payloads fall out of every cache
inline constexpr int64_t kChunksMax = 1 << 20;       // per job
inline constexpr int64_t kParametersMax = 65536;
inline constexpr int64_t kParameterElementsMax = int64_t{1} << 40;
inline constexpr int64_t kPathBytesMax = 4096;
inline constexpr int64_t kLinearSamplesMax = int64_t{1}
                                             << 26;  // 8 bytes each; more teach a line nothing
inline constexpr int64_t kSyntheticSamplesMax = int64_t{1} << 40;  // made on demand: costs nothing
inline constexpr int kGraphInputsMax = 64;                         // of data.npy; a file each
inline constexpr int kTensorNameBytesMax = 256;  // of what a job file names in a model
inline constexpr int kOnnxPatternsMax = 1024;    // of each kind, in model.onnx

// Queues.
inline constexpr int kMailboxMessagesMax = 1024;  // into a shard or exchange thread
inline constexpr int64_t kInflightBytesMax =
    512 << 10;  // worker: gradients being sent; more would only wait where nothing overtakes
inline constexpr int kPrefetchBatchesMax = 4;
inline constexpr int64_t kTraceEventsMax = 1 << 18;  // 25 MB; what a person can look at

// Waits. An error after one of these says what was awaited.
inline constexpr absl::Duration kHelloWaitMax =
    absl::Minutes(1);  // for the shards of a plan, or a neighbour of a ring: more than a transport
                       // takes to try all addresses of one, each for 5 s
inline constexpr absl::Duration kAnswerWaitMax =
    absl::Minutes(10);  // for values of a step. The last resort: a lost peer is noticed by the
                        // transport or the coordinator long before, and others may be slow
inline constexpr absl::Duration kReductionWaitMax =
    absl::Minutes(10);  // one step's gradients among the devices of a node; milliseconds, mostly
inline constexpr absl::Duration kCheckpointCallMax =
    absl::Minutes(10);  // and what the bytes take: a write ends with the slowest shard's
inline constexpr int64_t kCheckpointBytesPerSecondMin = 1 << 20;  // slower is taken for broken
inline constexpr absl::Duration kReleaseWaitMax =
    absl::Minutes(1);  // for the last transfers of a released shard, which take milliseconds, and
                       // for its peers to leave

}  // namespace muster::limits
