// Workloads at the paper's scale.
local hour = 3600;
local switches = { to_training_s: 8.52, to_rollout_s: 3.46 };  // published

{
  nl2repo_122b: switches {
    deadline_h:: 3.4,
    execution_s: 2.0 * hour,
    query_spread: 0.3428,
    execution_spread: 0.2676,
    deadline_s: self.deadline_h * hour,
    budget_s: 4.63 * hour,
    unresolved_share: 0.0087,
    unresolved_groups: 0.12,
    train_rank_s: 675,
    microsteps_per_group: 8,
  },
}
