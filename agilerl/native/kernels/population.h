/* What Python and the kernels agree on. Every change of a field here raises POPULATION_ABI. */
#include <stdint.h>

#define POPULATION_ABI 9
#define MAX_DEPTH 12

/* As `agilerl.native.library.ACTIVATIONS` numbers them. */
enum { IDENTITY, RELU, LEAKY_RELU, ELU, TANH, SIGMOID, SILU, GELU, MISH, SOFTPLUS, SOFTSIGN };

/* One layer: numbers of a row before and after it, and where its parameters lie in a member's row.
 *
 * A dense layer has `channels` 0. A convolution reads images [channels][height][width] and has the sizes of its kernel;
 * its weights are rows [channels][kernel_height][kernel_width], one for each channel of its outputs, of which `out` counts
 * all positions. It has no LayerNorm.
 */
typedef struct {
  int64_t in, out, activation, norm;
  int64_t weight, weight_row, bias, gain, shift;
  int64_t channels, height, width, kernel_height, kernel_width, stride_height, stride_width, pad_height, pad_width;
} Layer;

typedef struct {
  int64_t depth;
  Layer layers[MAX_DEPTH];
} Member;

/* The rows of N members, of which those from `begin` to `end` (excluded) are updated, and their optimiser.
 *
 * value, target, first and second are [N][D] with `stride` numbers from row to row; steps and lr [N]. room: numbers for
 * intermediate results, as many as the room function of the call says.
 */
typedef struct {
  int64_t begin, end, members, stride;
  void *value, *target, *first, *second;
  double *steps;
  const double *lr;
  double beta1, beta2, eps, decay;
  int64_t decouples_decay;
  void *room;
} Rows;

/* Outputs of the networks of N members for R rows each; a row's bits depend neither on N nor on R.
 *
 * Shapes: I inputs and O outputs, the same of all members. member [N]; obs [N][R][I]; outputs [N][R][O]. batch: R. rows:
 * for `begin`, `end`, `stride`, `value` and `room` alone.
 */
typedef struct {
  Rows rows;
  int64_t batch;
  const Member *member;
  const void *obs;
  void *outputs;
} Forward;

/* Temporal-difference updates.
 *
 * Shapes: U updates, N members, B rows, A actions, I inputs. member, tau and live [N]; obs and next_obs [U][N][B][I];
 * action, reward, discount and weight [U][N][B]; next_mask and obs_mask [U][N][B][A], null where everything is legal;
 * loss [U][N]; error [U][N][B]. conservative [N]: weights of the conservative term, null without it.
 */
typedef struct {
  Rows rows;
  int64_t updates, batch, inputs, is_double;
  const Member *member;
  const double *tau, *conservative;
  const uint8_t *live;
  const void *obs, *next_obs, *reward, *discount, *weight;
  const int64_t *action;
  const uint8_t *next_mask, *obs_mask;
  void *loss, *error;
} TemporalDifference;

/* Updates of deterministic actors and their critics, of which there are K = 1 or 2.
 *
 * Shapes: U updates, N members, B rows, A actions, I inputs. critics: rows of K N networks, critic by critic; actor, tau,
 * noise, limit and live [N]; encoder and head [K N]: a critic's head reads the features and the action. If `shared`, the
 * features are those of the first `shared` layers of the actor, as constants, and encoder is null. obs and next_obs
 * [U][N][B][I]; action and smoothing [U][N][B][A], the latter null without target policy smoothing (noise: its standard
 * deviation, held within `limit`; actions lie between low and high); reward, discount and weight [U][N][B]; loss and
 * actor_loss [U][N]; error [U][N][B]. The policy moves in every update whose number, `number` for the first one, is a
 * multiple of `policy_interval`; targets of critics move with it if `tracks_with_policy`, else always.
 */
typedef struct {
  Rows rows, critics; /* of the actors, of the critics */
  int64_t updates, batch, inputs, actions, twins, number, policy_interval, tracks_with_policy, shared;
  const Member *actor, *encoder, *head;
  double low, high;
  const double *tau, *noise, *limit;
  const uint8_t *live;
  const void *obs, *next_obs, *action, *smoothing, *reward, *discount, *weight;
  void *loss, *actor_loss, *error;
} ActorCritic;

/* Updates of soft actor-critic with two critics and a temperature, whose logarithm is one number of its row.
 *
 * Shapes: U updates, N members, B rows, A components of a Box action (0 if actions are discrete), C choices of discrete
 * ones (else 0), I inputs. critics: rows of 2 N networks, critic by critic; actor, tau, target_entropy and live [N];
 * encoder and head [2 N]: a critic's head reads the features and the action. encoder is null if heads read observations,
 * or, if `shared`, the features of the first `shared` layers of the actor, as constants. obs and next_obs [U][N][B][I];
 * action, and the normal numbers noise and next_noise of actions sampled at obs and next_obs, [U][N][B][A]; choice, reward,
 * discount and weight [U][N][B]; obs_mask and next_mask [U][N][B][C], null where everything is legal; loss and actor_loss
 * [U][N]; error [U][N][B]. log_alpha: column of the logarithm in rows of the temperature.
 */
typedef struct {
  Rows rows, critics, temperature; /* rows: of the actors */
  int64_t updates, batch, inputs, actions, choices, shared, log_alpha, learns_temperature;
  const Member *actor, *encoder, *head;
  const double *tau, *target_entropy;
  const uint8_t *live, *obs_mask, *next_mask;
  const int64_t *choice;
  const void *obs, *next_obs, *action, *noise, *next_noise, *reward, *discount, *weight;
  void *loss, *actor_loss, *error;
} SoftActorCritic;

/* One agent of a team: where its action lies in stored rows (column), features (start, width) and masks (legal); sizes
 * [components] of its choices, or no components for a Box action. obs and next_obs [U][N][B][inputs of its policy]. */
typedef struct {
  int64_t column, start, width, legal, components;
  const int64_t *sizes;
  const void *obs, *next_obs;
} TeamAgent;

/* Agents that share networks: numbers of its agents [count]; rows and networks [N] of the policy and of each critic. */
typedef struct {
  int64_t count;
  const int64_t *agents;
  Rows actor, critic[2];
  const Member *policy, *encoder[2], *head[2];
} TeamGroup;

/* Updates of teams with centralised critics, one (twins = 1) or two for each group.
 *
 * Shapes: U updates, N members, B rows, M agents, I inputs of all agents together, F features and S stored numbers of all
 * actions, W choices of all agents. joint and next_joint [U][N][B][I]; action [U][N][B][S]; gumbel and smoothing
 * [U][N][B][F], the latter null without it (noise, limit: as in ActorCritic, for actions in [-1, 1]); reward, discount,
 * weight, present and next_present [U][N][B][M], weights of absent agents being 0; obs_mask and next_mask [U][N][B][W],
 * null where everything is legal; tau and live [N]; loss and actor_loss [U][N]; error [U][N][B][M]. Policies and targets
 * move in every update whose number, `number` for the first one, is a multiple of `policy_interval`. rows: for `begin`,
 * `end` and `room` alone.
 */
typedef struct {
  Rows rows;
  int64_t members, updates, batch, inputs, features, stored, choices, agents, groups, twins, number, policy_interval;
  const TeamAgent *agent;
  const TeamGroup *group;
  double temperature;
  const double *tau, *noise, *limit;
  const uint8_t *live, *obs_mask, *next_mask;
  const void *joint, *next_joint, *action, *gumbel, *smoothing, *reward, *discount, *weight, *present, *next_present;
  void *loss, *actor_loss, *error;
} TeamActorCritic;

/* Updates of a policy and a value network on the minibatches of one epoch.
 *
 * Shapes: U minibatches, N members, B rows, S samples of a rollout, I inputs, C components of an action, W choices of all
 * components. policy, critic, clip, entropy_share, value_share and max_norm [N]; obs [N][S][I]; choice [N][S][C] (of
 * discrete actions) or action [N][S][C] (of normal ones, in units of the policy); numbers [N][S][4]: log probability,
 * value, advantage and return; legal [N][S][W], null where everything is legal; sample and weight [U][N][B]; live [U][N];
 * loss, policy_loss and divergence [U][N].
 *
 * sizes: [C] number of choices of each component; null for normal actions, whose log standard deviations are at least
 * `least` [C].
 */
typedef struct {
  Rows rows;
  int64_t updates, batch, inputs, samples, components, clips_value;
  const Member *policy, *critic;
  const double *clip, *entropy_share, *value_share, *max_norm;
  const int64_t *sizes;
  const double *least;
  const void *obs, *action, *numbers, *weight;
  const int64_t *choice, *sample;
  const uint8_t *legal, *live;
  void *loss, *policy_loss, *divergence;
} PolicyGradient;
