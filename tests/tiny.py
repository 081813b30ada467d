"""Short runs in which all happens that does in long ones: their flags."""

ENV = "gym:tests.short_env:Short-v0"
DATASET = "short/random-v0"  # the fixture `dataset` makes it, of that environment
ACTION_COST = 0.1  # of the dataset

# Everything that happens in a run happens in these 80 steps: episodes terminate and are cut off, D
# is written over, and the first checkpoint is of trained networks, ten steps after the warm-up.
ONLINE = [
    f"--env={ENV}",
    "--termination=never",
    "--num_steps=80",
    "--num_seeds=2",
    "--eval_every=20",
    "--eval_episodes=2",
    "--checkpoint_every=50",
    "--config.warmup_steps=40",
    "--config.fit_every=10",
    "--config.rollouts_per_step=3",
    "--config.rollout_length=2",
    "--config.updates_per_step=2",
    "--config.replay_capacity=60",
    "--config.batch_size=8",
    "--config.num_members=2",
    "--config.actor_hidden=(8,)",
    "--config.critic_hidden=(8,)",
    "--config.unet_hidden=(8,)",
    "--config.dynamics.hidden=(8,)",
]

OFFLINE = [
    f"--dataset={DATASET}",
    f"--env={ENV}",
    "--termination=never",
    "--num_steps=12",
    "--num_seeds=2",
    "--eval_every=4",
    "--eval_episodes=2",
    "--checkpoint_every=8",
    "--config.fit_every=4",
    "--config.rollouts_per_step=2",
    "--config.rollout_length=2",
    "--config.retain_refreshes=2",
    "--config.batch_size=8",
    "--config.num_members=2",
    "--config.actor_hidden=(8,)",
    "--config.critic_hidden=(8,)",
    "--config.unet_hidden=(8,)",
    "--config.dynamics.hidden=(8,)",
    "--config.dynamics.max_epochs=3",
]

# A run that goes on with the agent of such an offline run.
CONTINUED = [
    f"--env={ENV}",
    "--termination=never",
    "--num_steps=8",
    "--num_seeds=2",
    "--eval_every=4",
    "--eval_episodes=2",
    "--checkpoint_every=4",
    "--config.fit_every=4",
    "--config.rollouts_per_step=2",
    "--config.rollout_length=2",
    "--config.batch_size=8",
    "--config.updates_per_step=2",
    "--config.replay_capacity=200",
    "--config.dynamics.max_epochs=2",
]
