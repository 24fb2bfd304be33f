"""What users call: trainc.compile, train_step, the Dynamo backend, explain."""
